#!/usr/bin/env python3
"""Makes the corpus of cfi_fuzz from real objects: small pieces of their unwind tables.

usage: tests/fuzz/make_cfi_corpus.py FOLDER OBJECT...

Selects functions of each object whose call frame information has different operations. A piece contains up to four of
them with their CIEs, behind a new .eh_frame_hdr section. Needs readelf and objcopy.
"""
import hashlib
import pathlib
import re
import struct
import subprocess
import sys
import tempfile


def section(path, name):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["objcopy", "--dump-section", f"{name}={out.name}", path, "/dev/null"], check=True)
        return pathlib.Path(out.name).read_bytes()


def entries(path):
    """Yields (offset, is_cie, offset of its CIE, operations) of each entry of .eh_frame."""
    text = subprocess.run(["readelf", "--debug-dump=frames", path], capture_output=True, text=True,
                          errors="replace").stdout
    now = None
    for line in text.splitlines():
        head = re.match(r"^([0-9a-f]{8}) [0-9a-f]{16} [0-9a-f]{8} (CIE|FDE(?: cie=([0-9a-f]+))?)", line)
        if head:
            if now:
                yield now
            at = int(head.group(1), 16)
            is_cie = head.group(2) == "CIE"
            now = (at, is_cie, at if is_cie else int(head.group(3) or "0", 16), [])
        elif now:
            operation = re.search(r"(DW_CFA_\w+|DW_OP_\w+)", line)
            if operation:
                now[3].extend(re.findall(r"DW_(?:CFA|OP)_[a-z_]+", line))
    if now:
        yield now


def entry_bytes(table, at):
    return bytearray(table[at:at + 4 + struct.unpack_from("<I", table, at)[0]])


def piece(table, fdes):
    """Returns a header and an .eh_frame section with these FDEs. The addresses of their functions are arbitrary."""
    header_bytes = 12 + 8 * len(fdes)
    frames = bytearray()
    cies = {}
    pairs = []
    for i, (at, cie) in enumerate(fdes):
        if cie not in cies:
            cies[cie] = len(frames)
            frames += entry_bytes(table, cie)
        fde = entry_bytes(table, at)
        here = header_bytes + len(frames)
        function = 0x10000 + 0x1000 * i
        struct.pack_into("<I", fde, 4, len(frames) + 4 - cies[cie])
        struct.pack_into("<i", fde, 8, function - (here + 8))
        pairs.append((function, here))
        frames += fde
    frames += b"\0\0\0\0"
    header = bytes([1, 0x1B, 0x03, 0x3B]) + struct.pack("<iI", header_bytes - 4, len(fdes))
    return header + b"".join(struct.pack("<ii", *pair) for pair in pairs) + bytes(frames)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seen = set()
    for path in sys.argv[2:]:
        table = section(path, ".eh_frame")
        chosen = []
        for at, is_cie, cie, operations in entries(path):
            if is_cie or len(entry_bytes(table, at)) > 600:
                continue
            kind = tuple(sorted(set(operations)))
            if kind in seen:
                continue
            seen.add(kind)
            chosen.append((at, cie))
        for i in range(0, len(chosen), 4):
            data = bytes([7]) + piece(table, chosen[i:i + 4])
            (folder / hashlib.sha1(data).hexdigest()[:12]).write_bytes(data)


main()
