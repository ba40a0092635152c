"""Runs the pod of a Kubernetes manifest in this system, without Kubernetes, and reads the server's memory in it.

usage: pod_test.py MANIFEST WORK IMAGE=FOLDER...    WORK: an empty folder
                   FOLDER: has the file system of the image IMAGE, rootfs, and the output of `buildah inspect`,
                   inspect.json

Of the manifest it uses: the order of the containers, command, workingDir, env with values and fields of the pod,
volumeMounts, emptyDir, secret, runAsUser, runAsGroup, fsGroup, readOnlyRootFilesystem and allowPrivilegeEscalation.
Each container gets its image's files in an overlay, so no image changes, and namespaces for mounts, processes and IPC,
as in a pod. Needs root.
"""
import gzip
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import yaml

EXPECTED_BYTES = 14942208  # examples/serve.py: 8 MiB of weights and 100 pages of 64 KiB
TOKEN = "a token of a test"
URL = "http://127.0.0.1:4747"
# What Kubernetes sets.
NAMESPACE = "serving"
POD_UID = "01234567-89ab-cdef-0123-456789abcdef"


class Pod:
    def __init__(self, manifest, work, images):
        pod = yaml.safe_load(pathlib.Path(manifest).read_text())
        self.spec = pod["spec"]
        self.fields = {"metadata.name": pod["metadata"]["name"], "metadata.namespace": NAMESPACE, "metadata.uid": POD_UID}
        self.work = work
        self.images = images  # name: (file system, configuration)
        self.user = self.spec["securityContext"]["runAsUser"]
        self.group = self.spec["securityContext"]["runAsGroup"]
        assert self.spec["securityContext"]["runAsNonRoot"] and self.user != 0
        for volume in self.spec["volumes"]:
            folder = self.volume(volume["name"])
            folder.mkdir(parents=True)
            if "secret" in volume:
                (folder / "token").write_text(TOKEN)
                os.chmod(folder / "token", volume["secret"]["defaultMode"])
                os.chown(folder / "token", 0, self.spec["securityContext"]["fsGroup"])
            else:
                assert "emptyDir" in volume
                os.chown(folder, 0, self.spec["securityContext"]["fsGroup"])
                os.chmod(folder, 0o2777)

    def volume(self, name):
        return self.work / "volumes" / name

    def value(self, variable):
        source = variable.get("valueFrom")
        return self.fields[source["fieldRef"]["fieldPath"]] if source else variable["value"]

    def command(self, container, command):
        """The command line that runs `command` in this container."""
        security = container["securityContext"]
        image, configuration = self.images[container["image"]]
        folder = self.work / "containers" / f"{container['name']}.{time.monotonic_ns()}"
        root, upper, scratch = folder / "root", folder / "upper", folder / "work"
        for path in (root, upper, scratch):
            path.mkdir(parents=True)
        steps = [f"mount -t overlay overlay -o lowerdir={image},upperdir={upper},workdir={scratch} {root}",
                 f"mkdir -p {root}/proc {root}/dev", f"mount --rbind /dev {root}/dev"]
        for mount in container["volumeMounts"]:
            target = f"{root}{mount['mountPath']}"
            steps += [f"mkdir -p {target}", f"mount --bind {self.volume(mount['name'])} {target}"]
            if mount.get("readOnly"):
                steps.append(f"mount -o remount,bind,ro {target}")
        if security["readOnlyRootFilesystem"]:
            steps.append(f"mount -o remount,ro {root}")
        variables = [f"{variable['name']}={self.value(variable)}" for variable in container.get("env", [])]
        program = ["env", "-i", *configuration["Env"], *variables, *command]
        starter = ["unshare", "--pid", "--fork", "--ipc", "--root", str(root), "--wd", container.get("workingDir", "/"), "--mount-proc",
                   "--setgid", str(self.group), "--setuid", str(self.user), *program]
        if not security["allowPrivilegeEscalation"]:
            starter = ["setpriv", "--no-new-privs", *starter]
        steps.append("exec " + shlex.join(starter))
        return ["unshare", "--mount", "bash", "-euc", "\n".join(steps)]

    def start(self, container):
        command = container.get("command") or self.images[container["image"]][1]["Cmd"]
        return subprocess.Popen(self.command(container, command))

    def run(self, container, command):
        """Runs another command in the container, as `kubectl exec` does. Returns its output."""
        return subprocess.run(self.command(container, command), check=True, capture_output=True, text=True,
                              timeout=60).stdout


def wait_for(what, condition):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.2)
    raise AssertionError(f"after 60 s there is no {what}")


def get(path, token=TOKEN):
    request = urllib.request.Request(URL + path)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def only_child(pid):
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 1, children
    return int(children[0])


def first_process(process):
    """The process with the id 1 in the container that was started as `process`."""
    return only_child(process.pid)


def main():
    manifest, work = sys.argv[1], pathlib.Path(sys.argv[2])
    images = {}
    for argument in sys.argv[3:]:
        name, folder = argument.split("=", 1)
        configuration = json.loads(pathlib.Path(folder, "inspect.json").read_text())["OCIv1"]["config"]
        images[name] = (pathlib.Path(folder, "rootfs").resolve(), configuration)
    pod = Pod(manifest, work, images)
    started = []
    try:
        for container in pod.spec["initContainers"]:
            process = pod.start(container)
            if container.get("restartPolicy") == "Always":
                started.append(process)
                sidecar = container
                wait_for("port of the sidecar", lambda: get("/metrics"))
            else:
                assert process.wait() == 0, f"{container['name']} ended with {process.returncode}"
        assert get("/metrics", token=None) == 401

        (server,) = pod.spec["containers"]
        assert "command" not in server, "the image's own command must run"
        started.append(pod.start(server))
        labels = (f'pid="1",name="python3",container="server",pod="injected",namespace="{NAMESPACE}",pod_uid="{POD_UID}",'
                  'device="GPU:0",space="device"')
        sample = f"hbmprof_device_memory_in_use_bytes{{{labels}}} {EXPECTED_BYTES}"
        wait_for(f"line '{sample}' in the metrics", lambda: sample.encode() in (get("/metrics") or b""))
        assert gzip.decompress(get("/debug/pprof/heap?name=python3"))
        print(pod.run(sidecar, ["hbmprof", "ps"]))
        # A series. `dump` writes into the working directory.
        pod.run(sidecar, ["sh", "-c", "for i in 1 2 3; do hbmprof dump python3; sleep 1; done"])
        text = pod.run(sidecar, ["sh", "-c", "hbmprof leaks /dumps/hbmprof.*.pb.gz"])
        print(text)
        assert "no leak in " in text, text
        pod.run(sidecar, ["hbmprof", "dump", "python3"])
        assert len(list(pod.volume("dumps").iterdir())) == 4

        os.kill(first_process(started[-1]), signal.SIGTERM)
        assert started[-1].wait(timeout=30) == 0
        # The sidecar's container goes on without `serve`, which starts again, and ends with the pod.
        os.kill(only_child(first_process(started[0])), signal.SIGKILL)
        wait_for("end of serve", lambda: get("/metrics") is None)
        assert started[0].poll() is None
        wait_for("new serve", lambda: get("/metrics"))
        text = pod.run(sidecar, ["hbmprof", "top", "--exact", "--own", "/profiles/1.pb.gz"])
        print(text)
        assert any(line.split()[:3] == [str(EXPECTED_BYTES), "B", "100.00%"] and " allocate " in line
                   for line in text.splitlines())
        os.kill(first_process(started[0]), signal.SIGTERM)
        assert started[0].wait(timeout=30) == 0
        print("the pod passed")
    finally:
        for process in started:
            if process.poll() is None:
                os.kill(first_process(process), signal.SIGKILL)
                process.wait()


main()
