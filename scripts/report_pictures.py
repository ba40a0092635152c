#!/usr/bin/env python3
"""Draws the pictures of the report and of the live page in docs/ again. Needs chromium.

usage: scripts/report_pictures.py [BUILD]    BUILD: build/dev; it must have the command and examples/llm_server

report-*.png show five artificial profiles of a server with two devices, which this script writes. report-timeline-*.png
show a recording of the example server with a leak. serve-*.png show two example servers that `hbmprof serve` watches for
half a minute. Look at the pictures before you commit them.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20
MAIN = [("main", "/src/serve/main.cc", 64), ("serve::Server::Run", "/src/serve/server.cc", 118)]
LOAD = MAIN + [("serve::ModelRegistry::Load", "/src/serve/registry.cc", 77),
               ("llm::Transformer::Transformer", "/src/llm/transformer.cc", 31),
               ("llm::(anonymous namespace)::LoadLayer", "/src/llm/transformer.cc", 18)]
STEP = MAIN + [("serve::Scheduler::Step", "/src/serve/scheduler.cc", 142)]
# A frame of a known library: so the page has the buttons for own code and all frames.
MALLOC = [("cudaMalloc", "", 0)]
TENSOR = [("llm::Tensor::Tensor", "/src/llm/tensor.cc", 11)] + MALLOC
PAGE = [("llm::KvCache::Extend", "/src/llm/kv_cache.cc", 52),
        ("llm::KvCache::AllocatePage", "/src/llm/kv_cache.cc", 19)] + MALLOC
PREFILL = STEP + [("serve::Scheduler::Prefill", "/src/serve/scheduler.cc", 201)]
DECODE = STEP + [("serve::Scheduler::Decode", "/src/serve/scheduler.cc", 233)]


def sites(dump):
  """Returns (stack from main on, kind, phase, buffers in use, buffers at the peak, bytes of a buffer)."""
  pages = 1100 + 1024 * dump
  return [
      (LOAD + [("llm::FeedForward::FeedForward", "/src/llm/feed_forward.cc", 9)] + TENSOR, "device", "load", 64, 64,
       160 * MIB),
      (LOAD + [("llm::Attention::Attention", "/src/llm/attention.cc", 14)] + TENSOR, "device", "load", 64, 64,
       64 * MIB),
      (LOAD + [("llm::Norm::Norm", "/src/llm/norm.cc", 8)] + TENSOR, "device", "load", 64, 64, 14 * MIB),
      (PREFILL + PAGE, "device", "prefill", pages, pages + 800, MIB),
      (DECODE + PAGE, "device", "decode", 640, 900 + 20 * dump, MIB),
      (PREFILL + [("llm::Gemm::Gemm", "/src/llm/gemm.cc", 15)], "device", "prefill", 12 + dump % 2, 40, 96 * MIB),
      (MAIN + [("serve::WorkerPool::Start", "/src/serve/worker_pool.cc", 40),
               ("llm::StagingBuffer::StagingBuffer", "/src/llm/staging.cc", 12)], "pinned_host", "start", 4, 4,
       64 * MIB),
  ]


class Message:
  """The bytes of a protobuf message."""

  def __init__(self):
    self.bytes = b""

  def number(self, field, value):
    self.bytes += varint(field << 3) + varint(value)
    return self

  def data(self, field, value):
    self.bytes += varint(field << 3 | 2) + varint(len(value)) + value
    return self

  def numbers(self, field, values):
    return self.data(field, b"".join(varint(value) for value in values))


def varint(value):
  data = b""
  while value > 127:
    data += bytes([value & 127 | 128])
    value >>= 7
  return data + bytes([value])


class Profile:
  """A profile in pprof's format."""

  TYPES = [("inuse_objects", "count"), ("inuse_space", "bytes"), ("peak_objects", "count"), ("peak_space", "bytes"),
           ("alloc_objects", "count"), ("alloc_space", "bytes")]

  def __init__(self):
    self.message = Message()
    self.strings = {"": 0}
    self.locations = {}
    for name, unit in self.TYPES:
      self.message.data(1, Message().number(1, self.text(name)).number(2, self.text(unit)).bytes)

  def text(self, string):
    return self.strings.setdefault(string, len(self.strings))

  def location(self, frame):
    if frame not in self.locations:
      number = len(self.locations) + 1
      self.locations[frame] = number
      function, file, line = frame
      self.message.data(5, Message().number(1, number).number(2, self.text(function)).number(4, self.text(file)).bytes)
      self.message.data(4, Message().number(1, number).data(4, Message().number(1, number).number(2, line).bytes).bytes)
    return self.locations[frame]

  def sample(self, stack, values, labels):
    sample = Message().numbers(1, [self.location(frame) for frame in reversed(stack)]).numbers(2, values)
    for key, value in labels.items():
      sample.data(3, Message().number(1, self.text(key)).number(2, self.text(value)).bytes)
    self.message.data(2, sample.bytes)

  def write(self, path, time, comments):
    self.message.number(9, time * 10**9)
    for comment in comments:
      self.message.number(13, self.text(comment))
    self.message.number(14, self.text("inuse_space"))
    for string in self.strings:
      self.message.data(6, string.encode())
    packer = zlib.compressobj(wbits=31)
    with open(path, "wb") as file:
      file.write(packer.compress(self.message.bytes) + packer.flush())


def write_dump(path, dump):
  profile = Profile()
  comments = [f"counter requests value={5000 * dump}"]
  for device in ("GPU:0", "GPU:1"):
    sums = {"device": [0, 0, 0], "pinned_host": [0, 0, 0]}
    for stack, kind, phase, now, peak, size in sites(dump):
      # Each kind of buffer that is freed was allocated a number of times.
      ever = now if phase in ("load", "start") else peak + 4000 * (dump + 1)
      values = [now, now * size, peak, peak * size, ever, ever * size]
      profile.sample(stack, values, {"device": device, "kind": kind, "phase": phase})
      sums[kind] = [sums[kind][0] + now * size, sums[kind][1] + peak * size, sums[kind][2] + now]
    for space, (in_use, peak, live) in sums.items():
      limit = f" limit={80 << 30} unaccounted={700 * MIB}" if space == "device" else ""
      comments.append(f"device {device} space={space} in_use={in_use} peak={peak} num_live={live}{limit}")
  profile.write(path, 1795341600 + 600 * dump, comments)  # from 2026-11-22T10:00:00Z on


def draw(page, name, width, height, choices="", dark=False):
  url = f"file://{page}#{choices}"
  with tempfile.TemporaryDirectory() as state:
    subprocess.run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                    f"--user-data-dir={state}", f"--window-size={width},{height}",
                    f"--screenshot={ROOT}/docs/{name}.png", url], check=True, capture_output=True, timeout=120)
  print(f"docs/{name}.png")


def chromium_picture(url, name, theme, width, height, seconds):
  """Like draw(), but of a page that has been open for a number of seconds. Talks to chromium over its debugging pipe."""
  to_chromium, commands = os.pipe()
  answers, from_chromium = os.pipe()
  with tempfile.TemporaryDirectory() as state:
    process = subprocess.Popen(
        ["sh", "-c", f'exec chromium "$@" 3<&{to_chromium} 4>&{from_chromium}', "sh", "--headless=new", "--no-sandbox",
         "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={state}", f"--window-size={width},{height}",
         "--remote-debugging-pipe", url], pass_fds=(to_chromium, from_chromium), stderr=subprocess.DEVNULL)
    os.close(to_chromium)
    os.close(from_chromium)
    messages = os.fdopen(answers, "rb")

    def call(number, method, session=None, **parameters):
      message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
      os.write(commands, json.dumps(message).encode() + b"\0")
      while True:
        text = bytearray()
        while (byte := messages.read(1)) != b"\0":
          text += byte
        answer = json.loads(text)
        if answer.get("id") == number:
          return answer["result"]

    pages = [target for target in call(1, "Target.getTargets")["targetInfos"] if target["type"] == "page"]
    session = call(2, "Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
    call(3, "Emulation.setDeviceMetricsOverride", session, width=width, height=height, deviceScaleFactor=1, mobile=False)
    time.sleep(seconds)
    call(4, "Emulation.setEmulatedMedia", session, features=[{"name": "prefers-color-scheme", "value": theme}])
    picture = call(5, "Page.captureScreenshot", session)["data"]
    process.terminate()
    process.wait()
  with open(f"{ROOT}/docs/{name}.png", "wb") as file:
    file.write(base64.b64decode(picture))
  print(f"docs/{name}.png")


def draw_live_pages(build, hbmprof, folder, prompts):
  """Two servers, of which one leaks, and `hbmprof serve`."""
  sockets = f"{folder}/sockets"
  shutil.copy(f"{build}/examples/llm_server", f"{folder}/chat_api")
  processes = []
  for program, *options in ((f"{build}/examples/llm_server", "--leak", "--memory-mib", "256"),
                            (f"{folder}/chat_api", "--memory-mib", "16")):
    processes.append(subprocess.Popen([program, *options, "--dumps", "9999", "--dump-dir", folder, prompts],
                                      stdout=subprocess.DEVNULL, env={**os.environ, "HBMPROF_SOCKET_DIR": sockets}))
  time.sleep(2)
  serve = subprocess.Popen([hbmprof, "serve", "--port", "0", "--interval", "1s"], stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "HBMPROF_SOCKET_DIR": sockets})
  url = re.search("http://[^ ]*", serve.stdout.readline()).group()
  try:
    chromium_picture(url, "serve-light", "light", 1200, 640, 30)
    chromium_picture(url, "serve-dark", "dark", 1200, 640, 5)
    chromium_picture(url, "serve-phone", "light", 500, 1000, 5)
  finally:
    for process in [serve, *processes]:
      process.kill()
      process.wait()


def main():
  build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/build/dev")
  hbmprof = f"{build}/src/tool/hbmprof"
  with tempfile.TemporaryDirectory() as folder:
    dumps = [f"dump.{dump}.pb.gz" for dump in range(5)]
    for number, path in enumerate(dumps):
      write_dump(f"{folder}/{path}", number)
    subprocess.run([hbmprof, "report", "--per", "requests", *dumps, "-o", "report.html"], cwd=folder, check=True)
    draw(f"{folder}/report.html", "report-light", 1400, 960)
    draw(f"{folder}/report.html", "report-dark", 1400, 960, dark=True)
    draw(f"{folder}/report.html", "report-diff", 1400, 960, "mode=change")
    draw(f"{folder}/report.html", "report-phone", 500, 1500)
    prompts = f"{ROOT}/examples/llm_server/prompts.txt"
    subprocess.run([f"{build}/examples/llm_server", "--leak", "--dumps", "8", prompts], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, env={**os.environ, "HBMPROF_RECORD": f"{folder}/server.hbmrec"})
    subprocess.run([hbmprof, "report", "server.hbmrec", "-o", "timeline.html"], cwd=folder, check=True)
    draw(f"{folder}/timeline.html", "report-timeline-light", 1400, 760)
    draw(f"{folder}/timeline.html", "report-timeline-dark", 1400, 760, dark=True)
    draw(f"{folder}/timeline.html", "report-timeline-phone", 500, 1100)
    draw_live_pages(build, hbmprof, folder, prompts)


if __name__ == "__main__":
  main()
