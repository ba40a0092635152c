"""Checks the files in deploy/ with the programs that are installed here.

usage: deploy_test.py DEPLOY HBMPROF

Prints what was checked, and what was not and why. Exits 1 if a check fails.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

deploy, hbmprof = sys.argv[1:]
failed = []


def check(what, command, **options):
  result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
  print(f"{'ok' if result.returncode == 0 else 'FAILED'}: {what}")
  if result.returncode != 0:
    print(result.stdout)
    failed.append(what)


def has(program):
  if shutil.which(program):
    return True
  print(f"not checked: {program} is not installed")
  return False


def read(path):
  with open(os.path.join(deploy, path), encoding="utf-8") as file:
    return file.read()


if has("promtool"):
  folder = os.path.join(deploy, "prometheus")
  check("prometheus.yml", ["promtool", "check", "config", "prometheus.yml"], cwd=folder)
  check("alerts.yml", ["promtool", "check", "rules", "alerts.yml"], cwd=folder)
  check("alerts_test.yml", ["promtool", "test", "rules", "alerts_test.yml"], cwd=folder)
  # Debian's Prometheus does not find pods, so the job gets a list of hosts instead.
  with tempfile.TemporaryDirectory() as copy:
    pods = re.compile(r"kubernetes_sd_configs:\n( {6}.*\n)+")
    hosts = "static_configs:\n" + "".join(
        f'      - targets: ["127.0.0.1:{port}"]\n        labels: {{__meta_kubernetes_pod_phase: {phase}, '
        f"__meta_kubernetes_pod_container_port_name: {name}}}\n"
        for port, phase, name in ((1, "Running", "hbmprof"), (2, "Running", "http"), (3, "Succeeded", "hbmprof"),
                                  (4, "Failed", "hbmprof")))
    job = read("prometheus/kubernetes.yml")
    assert len(pods.findall(job)) == 1
    with open(os.path.join(copy, "job.yml"), "w", encoding="utf-8") as file:
      file.write(pods.sub(hosts, job))
    check("kubernetes.yml, without the pods", ["promtool", "check", "config", "--syntax-only", "job.yml"], cwd=copy)
    find = ["promtool", "check", "service-discovery", "--timeout=2s", "job.yml", "hbmprof"]
    found = json.loads(subprocess.run(find, stdout=subprocess.PIPE, check=True, cwd=copy).stdout)
    scraped = [pod["labels"]["instance"] for pod in found if pod["labels"]]
    if scraped != ["127.0.0.1:1"]:
      failed.append(f"kubernetes.yml scrapes {scraped}, not only the pod that runs")

# The queries of the dashboard are valid PromQL: promtool checks them as recording rules.
dashboard = json.loads(read("grafana/hbmprof.json"))
queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
if len(queries) < 8 or len({panel["id"] for panel in dashboard["panels"]}) != len(dashboard["panels"]):
  failed.append("hbmprof.json has too few queries, or panels with the same id")
if has("promtool"):
  with tempfile.TemporaryDirectory() as folder:
    rules = [{"record": f"query:{i}", "expr": query.replace("$__rate_interval", "1m")} for i, query in enumerate(queries)]
    with open(os.path.join(folder, "rules.json"), "w", encoding="utf-8") as file:
      json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
    check("the queries of hbmprof.json", ["promtool", "check", "rules", os.path.join(folder, "rules.json")])

# The unit, with the command that is not installed replaced by the one of this build.
if has("systemd-analyze"):
  with tempfile.TemporaryDirectory() as folder:
    unit = read("systemd/hbmprof-serve.service").replace("/usr/bin/hbmprof", os.path.abspath(hbmprof))
    path = os.path.join(folder, "hbmprof-serve.service")
    with open(path, "w", encoding="utf-8") as file:
      file.write(re.sub(r"Documentation=.*\n", "", unit))
    result = subprocess.run(["systemd-analyze", "verify", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, check=False)
    # Without a running systemd it can fail for other reasons than the unit.
    problems = [line for line in result.stdout.splitlines() if "hbmprof-serve.service" in line]
    print(f"{'FAILED' if problems else 'ok'}: hbmprof-serve.service")
    if problems:
      print("\n".join(problems))
      failed.append("hbmprof-serve.service")

if has("kubernetes-validate"):
  for name in ("injected.yaml", "sidecar.yaml"):
    check(name, ["kubernetes-validate", "--strict", os.path.join(deploy, "kubernetes", name)])

# Every option of `hbmprof serve` in the files exists.
help_text = subprocess.run([hbmprof, "serve", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
for path in ("systemd/hbmprof-serve.service", "kubernetes/injected.yaml", "kubernetes/sidecar.yaml"):
  command = re.search(r"^(?!\s*#).*\bhbmprof serve\b.*", read(path), re.MULTILINE).group()
  for option in re.findall(r"--[a-z-]+", command):
    if option not in help_text:
      failed.append(f"{path}: there is no option {option}")

print("not checked, because it cannot run here: parca.yaml, config.alloy, collector.yaml")
if failed:
  sys.exit("FAILED: " + "; ".join(failed))
