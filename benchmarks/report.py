#!/usr/bin/env python3
"""Runs record_bench and prints the table of goals: the cost that recording adds, the goal, and whether the goal is met.

usage: benchmarks/report.py [--build build/bench] [--repetitions 9] [--min-time 0.1] [--all] [--json FILE]
       benchmarks/report.py --compare BUILD... [--quiet] [--repetitions 9] [--min-time 0.1]

--all also runs scaling_bench, dump_bench and replay_bench and prints their output; --json stores the output of
record_bench in FILE. --compare prints only the added nanoseconds of several build folders, of which each is run once in
every round. --quiet, on a machine where other work comes and goes: a round of a case counts only if no untracked run in
it, before, between and after the tracked ones, took 10 % more than the fastest untracked run of this build and case.
Rounds are repeated until enough of them count. Use it with a short --min-time, such as 0.03.

Added nanoseconds are the median of the tracked runs minus the median of the untracked runs. The runs of all cases are
in random order. One thread is measured in processor time, on which other programs have the least effect; several
threads are measured in wall time. Build first: cmake --preset bench && cmake --build --preset bench.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# (title of the row, case, goal in added ns)
ADDED = [
    ("256 random stacks, frame pointers", "fp_random256", 60),
    ("256 random stacks, without frame pointers", "nofp_random256", 75),
    ("one path repeating, frame pointers", "fp_repeating", 32),
    ("one path repeating, without frame pointers", "nofp_repeating", 32),
    ("64 frames, repeating", "nofp_64frames_repeating", 65),
    ("64 frames, random", "nofp_64frames_random", 400),
    ("10,000 stacks, without frame pointers", "nofp_random10000", 230),
    ("1M live, random frees", "nofp_1M_live", 220),
    ("frame-pointer chain only", "fp_chain_only", None),
    ("no stacks", "no_stack", 20),
]

# (title of the row, case with blocks, case with plain allocations, goal: added ns of the first / those of the second)
BLOCKS = [
    ("a pool's block over a plain allocation, 256 random stacks", "fp_random256_block", "fp_random256", 1.3),
    ("the same, one path repeating", "fp_repeating_block", "fp_repeating", 1.3),
    ("the same, random blocks of 64 segments", "fp_repeating_block_64segments", "fp_repeating", None),
]


def read(path):
  try:
    with open(path, encoding="utf-8", errors="replace") as file:
      return file.read()
  except OSError:
    return ""


def cache_values(build):
  return dict(re.findall(r"^(\w+):\w+=(.*)$", read(os.path.join(build, "CMakeCache.txt")), re.MULTILINE))


def output_of(*command):
  try:
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return ""


def warn(text):
  print(f"\n**WARNING: {text}**")


def print_setting(build):
  """Prints the properties of the machine and of the build on which the numbers depend."""
  cache = cache_values(build)
  kind = cache.get("CMAKE_BUILD_TYPE", "")
  flags = " ".join(filter(None, (cache.get("CMAKE_CXX_FLAGS"), cache.get(f"CMAKE_CXX_FLAGS_{kind.upper()}"))))
  compiler = cache.get("CMAKE_CXX_COMPILER", "c++")
  cpu = re.search(r"^model name\s*: (.*)$", read("/proc/cpuinfo"), re.MULTILINE)
  dirty = " and uncommitted changes" if output_of("git", "status", "--porcelain", "--", "src", "include") else ""
  load, cores = os.getloadavg()[0], os.cpu_count()
  print(f"- processor: {cpu.group(1) if cpu else 'unknown'}, {cores} cores; load average {load:.2f} at the start")
  print(f"- build: {kind}, {(output_of(compiler, '--version') or compiler).splitlines()[0]}, {flags}")
  print(f"- commit: {output_of('git', 'rev-parse', '--short', 'HEAD') or 'unknown'}{dirty}")
  if kind != "Release" or cache.get("HBMPROF_SANITIZER"):
    warn("this is not a release build; its times have no meaning")
  if load > 0.5 * cores:
    warn(f"the machine is busy (load {load:.1f} on {cores} cores); its times are not reliable")


def run_record_bench(options, path, build, repetitions, cases=".*"):
  command = [
      os.path.join(build, "benchmarks", "record_bench"),
      f"--benchmark_filter={cases}",
      f"--benchmark_repetitions={repetitions}",
      f"--benchmark_min_time={options.min_time}",
      "--benchmark_enable_random_interleaving=true",
      "--benchmark_out_format=json",
      f"--benchmark_out={path}",
  ]
  done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
  if done.returncode != 0:
    sys.exit(f"record_bench failed:\n{done.stderr}")
  runs = {}
  for run in json.loads(read(path))["benchmarks"]:
    if run["run_type"] == "iteration":
      if run.get("error_occurred"):
        sys.exit(f"{run['name']}: {run['error_message']}")
      runs.setdefault(run["run_name"], []).append(run)
  return runs


def median(runs, name, key):
  return statistics.median(run[key] for run in runs[name])


def pair_time(runs, case, word, threads=1):
  return median(runs, f"{case}/{word}/real_time/threads:{threads}", "cpu_time" if threads == 1 else "real_time")


def row(*cells):
  print("| " + " | ".join(cells) + " |")


def verdict(value, goal, at_least=False):
  if goal is None:
    return "", ""
  holds = value >= goal if at_least else value <= goal
  return f"{'>=' if at_least else '<='} {goal:g}", "yes" if holds else "**no**"


def print_added(runs):
  print()
  row("alloc + free", "untracked ns", "added ns", "goal", "holds")
  row(*["---"] * 5)
  for title, case, goal in ADDED:
    untracked = pair_time(runs, case, "untracked")
    added = pair_time(runs, case, "tracked") - untracked
    row(title, f"{untracked:.1f}", f"{added:.1f}", *verdict(added, goal))
  for title, block, plain, goal in BLOCKS:
    untracked = pair_time(runs, block, "untracked")
    added = pair_time(runs, block, "tracked") - untracked
    ratio = added / (pair_time(runs, plain, "tracked") - pair_time(runs, plain, "untracked"))
    row(title, f"{untracked:.1f}", f"{added:.1f}, {ratio:.2f}x", *verdict(ratio, goal))
  # In this case the rest of the loop varies least.
  untracked = pair_time(runs, "nofp_repeating", "untracked")
  off = pair_time(runs, "nofp_repeating", "off") - untracked
  row("off, one path repeating", f"{untracked:.1f}", f"{off:.1f}", *verdict(off, 1))
  tag = median(runs, "TagScope", "cpu_time")
  row("ScopedTag, push + pop", "", f"{tag:.1f}", *verdict(tag, 20))


def print_threads(runs):
  print()
  row("wall ns per pair over all threads", "1 thread", "2 threads", "8 threads", "2 over 1, throughput", "goal",
      "holds", "8 over 2, wall", "goal", "holds")
  row(*["---"] * 10)
  for case in ("fp_random256", "nofp_random256"):
    for word in ("tracked", "untracked"):
      wall = {t: median(runs, f"{case}/{word}/real_time/threads:{t}", "real_time") for t in (1, 2, 8)}
      goals = (1.85, 1.3) if word == "tracked" else (None, None)
      row(f"{case} {word}", *(f"{wall[t]:.1f}" for t in (1, 2, 8)), f"{wall[1] / wall[2]:.2f}x",
          *verdict(wall[1] / wall[2], goals[0], at_least=True), f"{wall[8] / wall[2]:.2f}x",
          *verdict(wall[8] / wall[2], goals[1]))


def print_memory(runs):
  memory = next(name for name in runs if name.startswith("Memory/"))
  start_up = next(name for name in runs if name.startswith("StartUp"))
  first = {word: next(name for name in runs if name.startswith(f"FirstCapture/{word}/"))
           for word in ("untracked", "tracked")}
  per_thread = {key: median(runs, first["tracked"], key) - median(runs, first["untracked"], key)
                for key in ("real_time", "bytes_per_thread")}
  lines = [
      ("host memory per live buffer at 1M live", median(runs, memory, "bytes_per_live"), "B", 70),
      ("what 1M live took that is left at 10k live",
       100 * median(runs, memory, "MiB_at_10k_after") / median(runs, memory, "MiB_at_1M"), "%", None),
      ("start-up: a profiler and its first allocation", median(runs, start_up, "real_time") / 1e6, "ms", 2),
      ("start-up: memory", median(runs, start_up, "bytes") / 2**20, "MiB", 4),
      ("a thread's first allocation", per_thread["real_time"] / 1e3, "us", 50),
      ("memory per thread", per_thread["bytes_per_thread"] / 2**10, "KiB", 64),
  ]
  print()
  row("memory and start", "measured", "goal", "holds")
  row(*["---"] * 4)
  for title, value, unit, goal in lines:
    row(title, f"{value:.3g} {unit}", *verdict(value, goal))


def compare_round(options, path, case):
  """Runs one case once with each build. Returns {build: (tracked, [untracked])}; the last has an untracked run more."""
  times = {}
  name = f"^{case}/(un)?tracked/real_time/threads:1$"
  for build in options.compare:
    runs = run_record_bench(options, path, build, 1, name)
    times[build] = (pair_time(runs, case, "tracked"), [pair_time(runs, case, "untracked")])
  runs = run_record_bench(options, path, build, 1, name.replace("(un)?tracked", "untracked"))
  times[build][1].append(pair_time(runs, case, "untracked"))
  return times


def quiet_rounds(rounds):
  """Returns the rounds in which the untracked runs of each build are near the fastest one of all rounds."""
  fastest = {build: min(min(times[build][1]) for times in rounds) for build in rounds[0]}
  return [times for times in rounds
          if all(max(untracked) <= 1.1 * fastest[build] for build, (_, untracked) in times.items())]


def compare(options):
  """Prints the added nanoseconds of options.compare, with the distance from the least to the largest round."""
  most_rounds = 20 * options.repetitions if options.quiet else options.repetitions
  print(f"added ns per pair: medians of {options.repetitions} rounds, (largest - least)\n")
  row("alloc + free", *options.compare, "goal", "rounds")
  row(*["---"] * (len(options.compare) + 3))
  for title, case, goal in ADDED:
    rounds = []
    counted = []
    with tempfile.TemporaryDirectory() as folder:
      while len(rounds) < most_rounds and len(counted) < options.repetitions:
        rounds.append(compare_round(options, os.path.join(folder, "record.json"), case))
        counted = quiet_rounds(rounds) if options.quiet else rounds
    cells = []
    for build in options.compare:
      added = [times[build][0] - times[build][1][0] for times in counted]
      cells.append(f"{statistics.median(added):.1f} ({max(added) - min(added):.1f})" if added else "")
    row(title, *cells, verdict(0, goal)[0], f"{len(counted)} of {len(rounds)}")
    sys.stdout.flush()


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
  parser.add_argument("--repetitions", type=int, default=9)
  parser.add_argument("--min-time", type=float, default=0.1)
  parser.add_argument("--all", action="store_true")
  parser.add_argument("--json")
  parser.add_argument("--compare", nargs="+", metavar="BUILD")
  parser.add_argument("--quiet", action="store_true")
  options = parser.parse_args()
  if options.compare:
    return compare(options)
  if not os.path.exists(os.path.join(options.build, "benchmarks", "record_bench")):
    sys.exit(f"no record_bench in {options.build}: cmake --preset bench && cmake --build --preset bench")

  print_setting(options.build)
  sys.stdout.flush()
  with tempfile.TemporaryDirectory() as folder:
    path = options.json or os.path.join(folder, "record.json")
    runs = run_record_bench(options, path, options.build, options.repetitions)
  print_added(runs)
  print_threads(runs)
  print_memory(runs)
  if options.all:
    recording = os.path.join(ROOT, "benchmarks", "llm_server.hbmrec")
    for program, *arguments in (["scaling_bench"], ["dump_bench"], ["replay_bench", recording]):
      path = os.path.join(options.build, "benchmarks", program)
      print(f"\n`{program}`:\n```", flush=True)
      if os.path.exists(path):
        subprocess.run([path, *arguments], check=False)
      else:
        print("not built here")
      print("```")


if __name__ == "__main__":
  main()
