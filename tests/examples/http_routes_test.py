#!/usr/bin/env python3
"""Reads the routes of a running example with urllib, promtool and pprof.

usage: http_routes_test.py PROGRAM PPROF
Prints what is not checked because a tool is missing. Exits with 1 and a message if an answer is wrong.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

BYTES = 1 << 20  # what the example holds


def get(address):
  """(status, content type, body)"""
  try:
    with urllib.request.urlopen(address, timeout=30) as answer:
      return answer.status, answer.headers["Content-Type"], answer.read()
  except urllib.error.HTTPError as error:
    with error:
      return error.code, error.headers["Content-Type"], error.read()


def expect(is_right, message):
  if not is_right:
    sys.exit(f"http_routes_test: {message}")


def check_heap(server):
  status, kind, body = get(f"{server}/debug/pprof/heap")
  expect((status, kind) == (200, "application/octet-stream"), f"heap: {status} {kind} {body[:200]}")
  expect(b"inuse_space" in gzip.decompress(body), "heap: no profile")
  status, _, body = get(f"{server}/debug/pprof/heap?gc=1&max_samples=1")
  expect(status == 200 and b"inuse_space" in gzip.decompress(body), f"heap with limits: {status}")
  for query in ["max_samples=x", "seconds=5", "debug=1"]:
    status, kind, body = get(f"{server}/debug/pprof/heap?{query}")
    expect(status == 400 and body.startswith(b"hbmprof: "), f"heap?{query}: {status} {body}")


def check_metrics(server):
  status, kind, body = get(f"{server}/metrics?tags=phase%2Cmodel")
  expect((status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), f"metrics: {status} {kind}")
  line = f'\nhbmprof_device_memory_bytes{{device="sim:0",kind="device",tag_phase="",tag_model=""}} {BYTES}\n'
  expect(line in body.decode(), f"metrics: {body.decode()}")
  status, _, body = get(f"{server}/metrics?label=phase")
  expect(status == 400, f"metrics?label=phase: {status} {body}")
  if shutil.which("promtool") is None:
    print("promtool is missing (Debian: prometheus), so it is not run")
    return
  _, _, body = get(f"{server}/metrics")
  run = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
  expect(run.returncode == 0 and run.stdout + run.stderr == b"", f"promtool: {run.stdout + run.stderr}")


def check_pprof(server, pprof):
  if not os.access(pprof, os.X_OK):
    print(f"{pprof} is missing (scripts/test.sh builds it), so pprof is not run")
    return
  with tempfile.TemporaryDirectory() as folder:
    run = subprocess.run([pprof, "-top", f"{server}/debug/pprof/heap"], capture_output=True, text=True, check=False,
                         env={**os.environ, "PPROF_TMPDIR": folder, "HOME": folder})
  expect(run.returncode == 0 and " of 1MB total" in run.stdout and " main\n" in run.stdout, run.stdout + run.stderr)


def main():
  program, pprof = sys.argv[1:]
  with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
    server = f"http://127.0.0.1:{process.stdout.readline().strip()}"
    try:
      check_heap(server)
      check_metrics(server)
      check_pprof(server, pprof)
      status, _, _ = get(f"{server}/other")
      expect(status == 404, f"another route: {status}")
    finally:
      process.stdin.close()
    expect(process.wait(30) == 0, f"the program ended with {process.returncode}")


if __name__ == "__main__":
  main()
