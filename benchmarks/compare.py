#!/usr/bin/env python3
"""Compares the cost of recording between builds: runs the record_bench of each build in turn and prints medians.

usage: benchmarks/compare.py [--rounds 9] [--min-time 0.1] [--threads 1] BUILD BUILD...

A BUILD is a build folder, usually with the preset release; the first one is the state before. In each round, each build
runs all cases once, in an order that changes from round to round, so that a slow moment of the machine affects all builds
equally. The table shows the added nanoseconds of a pair of allocation and free: the median over the rounds of the
tracked time minus the untracked time of the same round. The spread is half of the distance between the quartiles of
these differences. "least" is the least tracked time minus the least untracked time: other programs on the machine can
only make a run slower, so it varies less than the median. One thread is measured in processor time, several threads in
wall time.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

CASES = [
    "fp_random256",
    "nofp_random256",
    "fp_repeating",
    "nofp_repeating",
    "nofp_64frames_repeating",
    "nofp_random10000",
    "nofp_1M_live",
    "fp_chain_only",
    "no_stack",
]


def name_of(case, word, threads):
  return f"{case}/{word}/real_time/threads:{threads}"


def run_once(build, options):
  """Runs the cases once with the record_bench of `build`. Returns the nanoseconds of each run by name."""
  pattern = f"^({'|'.join(CASES)})/(untracked|tracked|recorded)/real_time/threads:{options.threads}$"
  with tempfile.NamedTemporaryFile(suffix=".json") as out:
    done = subprocess.run([
        os.path.join(build, "benchmarks", "record_bench"), f"--benchmark_filter={pattern}",
        f"--benchmark_min_time={options.min_time}", "--benchmark_enable_random_interleaving=true",
        "--benchmark_out_format=json", f"--benchmark_out={out.name}"
    ], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
      sys.exit(f"record_bench of {build} failed:\n{done.stderr}")
    key = "cpu_time" if options.threads == 1 else "real_time"
    return {run["name"]: run[key] for run in json.load(out)["benchmarks"]}


def print_table(title, word, builds, rounds, threads):
  print(f"\n| {title} | " + " | ".join(f"{build}: median | spread | least" for build in builds) + " | last - first: median | least |")
  print("|---" * (3 + 3 * len(builds)) + "|")
  for case in CASES:
    cells, medians, least = [], [], []
    for build in builds:
      pairs = [(run[name_of(case, word, threads)], run[name_of(case, "untracked", threads)])
               for run in rounds[build]
               if name_of(case, word, threads) in run]
      if len(pairs) < 2:
        cells += [""] * 3
        continue
      added = [tracked - untracked for tracked, untracked in pairs]
      quartiles = statistics.quantiles(added, n=4, method="inclusive")
      medians.append(statistics.median(added))
      least.append(min(tracked for tracked, _ in pairs) - min(untracked for _, untracked in pairs))
      cells += [f"{medians[-1]:.1f}", f"{(quartiles[2] - quartiles[0]) / 2:.1f}", f"{least[-1]:.1f}"]
    if medians:
      is_complete = len(medians) == len(builds)
      cells += [f"{values[-1] - values[0]:+.1f}" if is_complete else "" for values in (medians, least)]
      print(f"| {case} | " + " | ".join(cells) + " |")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("builds", nargs="+", metavar="BUILD")
  parser.add_argument("--rounds", type=int, default=9)
  parser.add_argument("--min-time", type=float, default=0.1)
  parser.add_argument("--threads", type=int, default=1)
  options = parser.parse_args()
  rounds = {build: [] for build in options.builds}
  print(f"load average at the start: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores; {options.rounds} rounds")
  for _ in range(options.rounds):
    for build in random.sample(options.builds, len(options.builds)):
      rounds[build].append(run_once(build, options))
  print_table("added ns of a tracked pair", "tracked", options.builds, rounds, options.threads)
  print_table("added ns with a recording to a file", "recorded", options.builds, rounds, options.threads)
  print(f"\nload average at the end: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
  main()
