#!/usr/bin/env python3
"""Checks what a reader of JUnit's format shows for tests that exceed the limits of LeakCheck and PeakCheck.

usage: junit_test.py PROGRAM
"""
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree


def main():
  with tempfile.TemporaryDirectory() as folder:
    report = os.path.join(folder, "junit.xml")
    run = subprocess.run([sys.argv[1], f"--gtest_output=xml:{report}"], capture_output=True, text=True, check=False)
    root = xml.etree.ElementTree.parse(report)
  print(run.stdout, run.stderr)
  assert run.returncode == 1, run.returncode
  failures = {case.get("name"): [failure.get("message") for failure in case.iter("failure")]
              for case in root.iter("testcase")}
  assert failures["IsWithinItsLimits"] == [], failures
  (peak,) = failures["StaysSmall"]
  assert "this scope used 102400 B of sim:0 at its peak, more than 65536 B" in peak, peak
  assert "InsertPage" in peak and "limits_program.cc" in peak, peak
  (leak,) = failures["FreesItsPages"]
  assert "device memory allocated in this scope was not freed: 4096 B in 1 buffer" in leak and "InsertPage" in leak, leak


main()
