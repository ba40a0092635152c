#!/usr/bin/env python3
"""The server of pod_test.py: allocates as examples/serve.py does, and ends at SIGTERM."""
import pathlib
import runpy
import signal
import sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
kept = runpy.run_path(str(pathlib.Path(__file__).with_name("serve.py")))
while True:
    signal.pause()
