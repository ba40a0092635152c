"""What users see of whole frameworks. Each check is a function that gets a Session; it returns what is wrong, or None."""
import json
import os
import pathlib
import re
import subprocess
import time

MIB = 1 << 20
SECONDS_OF_THE_LEAK = 25


class Session:
    """Runs programs, and hbmprof's command on their profiles."""

    def __init__(self, runner):
        self.runner = runner

    def run(self, *arguments, settings="", options=(), devices=1):
        """Runs a program of programs/ under hbmprof. Returns its status, its output, and the profiles of its end."""
        name = re.sub(r"[^a-z0-9]+", "-", " ".join([*arguments, settings, *options]).lower()).strip("-")
        return self.runner.run(name, list(arguments), settings, devices, options)

    def start(self, program):
        """Starts a program of programs/ without hbmprof, and waits until it prints a line."""
        process = self.runner.start(program)
        process.stdout.readline()
        return process

    def profiles(self, program):
        """The profiles that a program of the table has written at its end, and at its last moment."""
        folder = self.runner.results / program
        moments = sorted(folder.glob("rows.*.gz"), key=os.path.getmtime)
        return sorted(folder.glob("profiles/*.gz")), moments[-1]

    def output(self, program):
        return (self.runner.results / program / "output").read_text()

    def command(self, *arguments):
        done = subprocess.run([self.runner.command, *map(str, arguments)], capture_output=True, text=True, timeout=300)
        return done.stdout + done.stderr

    def top(self, *arguments):
        return json.loads(self.command("top", "--json", "-n", "0", *arguments))


def pages(session, framework="torch"):
    """The commands of the pages about PyTorch, and its part of those about Python, print what the pages show."""
    status, output = session.runner.run_pages(framework)
    return None if status == 0 else output


def tensorflow_pages(session):
    """The commands of the page about TensorFlow print what it shows."""
    return pages(session, "tensorflow")


def npu_pages(session):
    """The commands of the page about Ascend print what it shows."""
    return pages(session, "npu")


def peak_of_tensors(session):
    """The peak is that of the tensors, also if the driver's memory had its own earlier."""
    _, _, profiles = session.run("peaks.py")
    selected = session.top("--type", "pool_peak_space", "-w", "kind=device", *profiles)["selected"]
    return None if selected == 250 * MIB else f"{selected} bytes, not 250 MiB"


def context_with_expandable_segments(session):
    """The CUDA context is memory from the start, not memory that was allocated since then."""
    output = session.output("expandable_segments")
    return None if "3.00 MiB of it from the start" in output else output


def ranks_differ(session):
    """Rank 1 of torchrun holds 16 MiB more at its end."""
    profiles, _ = session.profiles("torchrun-2-ranks")
    output = session.command("diff", "--ranks", *profiles)
    return None if re.search(r"^ +1 +\+16\.00 MiB .* main", output, re.M) else output


def frames_of_a_deep_stack(session):
    """No stack of GPT-2 is cut."""
    _, moment = session.profiles("GPT-2-KV-cache")
    return None if "[stack truncated]" not in session.command("top", "--no-own", "--tree", moment) else "a stack is cut"


def lines_of_the_program(session):
    """GPT-2's memory belongs to lines of the program, not to transformers, which is a package."""
    _, moment = session.profiles("GPT-2-KV-cache")
    rows = session.top("-w", "kind=device", moment)["rows"]
    others = [row["function"] for row in rows if row["flat"] and "/programs/" not in row["where"]]
    return f"rows of others: {others}" if others else None


def generated_code(session):
    """Code that torch.compile has generated is a library."""
    _, moment = session.profiles("torch.compile")
    files = session.top("--by", "file", moment)["rows"]
    others = [row["file"] for row in files if row["flat"] and "/inductor_cache/" in row["file"]]
    return f"rows of generated code: {others}" if others else None


def operators_of_the_backward_pass(session):
    """Gradients have a row for each operator that made them."""
    _, moment = session.profiles("MLP-Adam")
    names = [row["function"] for row in session.top("-w", "kind=device", moment)["rows"]]
    wanted = "backward: AddmmBackward0"
    return None if any(name.startswith(wanted) for name in names) else f"no row {wanted}: {names}"


def second_recording(session):
    """With --record, hbmprof.stats() prints nothing."""
    _, output, _ = session.run("stats.py", options=("--record",))
    return output if "there is a recording already" in output else None


def pytest_limits(session):
    """The limits of the pytest plugin count tensors."""
    program = str(pathlib.Path(__file__).parent / "programs" / "test_memory.py")
    _, output, _ = session.run("-m", "pytest", "-p", "hbmprof.pytest_plugin", "-p", "no:cacheprovider", "-rA", program)
    results = {name: result for result, name in re.findall(r"^(PASSED|FAILED|ERROR) \S*::(\w+)", output, re.M)}
    wrong = [f"{name} {result}" for name, result in results.items() if ("good" in name) != (result == "PASSED")]
    return ", ".join(wrong) if len(results) == 5 else output[-2000:]


def leak_after_attach(session):
    """After `hbmprof attach`, `hbmprof leaks` accuses the function that keeps tensors, and no other."""
    with session.start("leak.py") as process:
        output = session.command("attach", process.pid)
        time.sleep(SECONDS_OF_THE_LEAK)
        output += session.command("leaks", process.pid)
        process.stdin.close()
    accused = re.findall(r"LEAK .*\n(?:(?! *\d+\. ).*\n)*?      +(\w[\w.]*)  +/.*/programs/", output)
    return None if accused and set(accused) == {"remember_activation"} else output


def leak_on_npu(session):
    """One profile of a program with torch_npu accuses the function that keeps tensors, and no other of its five."""
    _, _, profiles = session.run("npu.py", "1300", "0.025", options=("--interval", "24"))
    output = session.command("leaks", profiles[0])  # the program goes on when it is written
    accused = re.findall(r"LEAK  (\S+)", output)
    return None if accused == ["log"] else output


def components_on_npu(session):
    """The segments of torch_npu keep the component that asked CANN's driver for them, also where they are mapped."""
    for program in ("torch_npu", "torch_npu-expandable"):
        _, moment = session.profiles(program)
        rows = session.top("--type", "reserved_space", "--by", "component", moment)["rows"]
        if [(row["labels"]["component"], row["flat"]) for row in rows] != [("APP", 60 * MIB)]:
            return f"{program}: {rows}"
    return None


def out_of_memory_on_npu(session):
    """A failed allocation of torch_npu is reported if it fails again after the cache was emptied, and only then."""
    _, output, _ = session.run("npu_out_of_memory.py")
    failures = re.findall(r"the cache was enough|out of memory on NPU:0: \S+ of \S+ GiB failed", output)
    wanted = ["the cache was enough", "out of memory on NPU:0: halMemAlloc of 6.00 GiB failed"]
    return None if failures == wanted else output


def jax_manual(session):
    """The programs of JAX's manual, through libhbmprof_pjrt.so: each function has the bytes of JAX's own profiles."""
    output, problem = session.runner.run_jax()
    print(output)
    return problem


def jax_under_run(session):
    """A note says what shows the arrays. It does not say how XLA allocates, because a variable decides that."""
    _, output, profiles = session.run("jax_arrays.py")
    text = output + session.command("top", *profiles)
    return None if text.count("use_with_jax") == 2 and "in advance" not in text else text


def use_with_jax_cuda(session):
    """use_with_jax("cuda") replaces JAX's own plugin of that name, also if hbmprof is used before JAX."""
    status, output, profiles = session.run("jax_arrays.py", "use")
    if status != 0 or "ALREADY_EXISTS" in output:
        return output[-1000:]
    answer = session.command("explain", profiles[0].parent.parent / "arrays.pb.gz")
    rows = session.top(profiles[0].parent.parent / "arrays.pb.gz")["rows"]
    return None if rows[0]["flat"] == 40000000 and "FRAGMENTED" not in answer else f"{rows[0]}, {answer}"


def killed_process(session):
    """`hbmprof run` asks an engine for its profile before the server gets SIGTERM and kills the engine."""
    _, output, profiles = session.run("killed.py")
    selected = session.top("-w", "kind=device", *profiles)["selected"] if profiles else 0
    good = selected == 100 * MIB and "was killed before it wrote a profile; its profile is of" in output
    return None if good else f"{selected} bytes, not 100 MiB\n{output}"


def whole_segment(session):
    """A tensor that is a whole segment counts once in alloc_space."""
    _, _, profiles = session.run("whole_segment.py")
    selected = session.top("--type", "alloc_space", "-w", "allocator=pytorch", *profiles)["selected"]
    return None if selected == 100 * MIB else f"{selected} bytes, not 100 MiB"


def phases_and_kernels(session):
    """`-w phase=-` finds what the row `-` of `--by phase` shows, and functions that start kernels have their names."""
    _, _, profiles = session.run("phases.py")
    rows = {row["labels"]["phase"]: row["flat"] for row in session.top("--by", "phase", *profiles)["rows"]}
    selected = session.top("-w", "phase=-", *profiles)["selected"]
    if not rows.get("") == selected > 0:
        return f"{rows}, but -w phase=- finds {selected} bytes"
    output = session.command("top", "--no-own", "-n", "0", "-w", "kind=executable", *profiles)
    return None if "::masked_scatter_size_check " in output and "__device_stub__" not in output else output


def forward_line(session):
    """watch() labels an operator of the backward pass with the line of the forward pass, if anomaly detection is on."""
    shown = {}
    for is_on in ("True", "False"):
        _, _, profiles = session.run("anomaly.py", is_on)
        shown[is_on] = session.command("top", "--by", "function,forward", "-w", "kind=device", "-w", "phase=backward",
                                       *profiles)
    good = re.search(r"^ *4.00 MiB .* programs/anomaly.py:16 +backward: MmBackward0 \[PyTorch\]", shown["True"], re.M)
    return None if good and "no sample has the label 'forward'" in shown["False"] else str(shown)


def end_after_backward(session):
    """A watched program may end while PyTorch's threads destroy what backward() has left."""
    _, output, _ = session.run("ends_after_backward.py")
    return None if "0 of 6 processes were killed" in output else output


def kernel_code(session):
    """The default table marks kernel code."""
    _, moment = session.profiles("MLP-Adam")
    wanted = {row["function"] for row in session.top("-w", "kind=executable", moment)["rows"] if row["flat"]}
    marked = set(re.findall(r"%  ([^%\n]*) \(kernel code\) ", session.command("top", "-n", "0", moment)))
    return None if marked == wanted and wanted else f"{marked} are marked, not {wanted}"


def fit_of_a_transformer(session):
    """`hbmprof fit` predicts what a transformer allocates at sizes that it was not run with, within 2 %."""
    sizes = [(8, 512), (12, 1280), (32, 384), (24, 1000), (40, 512), (32, 1200)]
    profiles = [session.run("sizes.py", str(batch), str(tokens))[2][-1] for batch, tokens in sizes]
    answer = json.loads(session.command("fit", "--json", "-n", "0", "--by", "batch,tokens", "--at", "32,1200",
                                        *profiles[:-1]))
    memory = answer["memories"][0]
    outside = {row["function"]: row["bytes"] for row in memory["rows"] if row["function"].startswith("[")}
    predicted = memory["bytes"] - sum(outside.values())
    allocated = session.top("--type", "pool_peak_space", "-w", "kind=device", profiles[-1])["total"]
    code = session.top("--type", "peak_space", "-w", "kind=executable", profiles[-1])["total"]
    share = predicted / (allocated + code)
    peak = session.top("--type", "peak_space", "-w", "device=GPU:0", profiles[-1])["total"] + outside["[unaccounted]"]
    # The idle memory of PyTorch's cache has no law, so the peak with it has a wide range.
    good = abs(share - 1) < 0.02 and memory["low"] < peak < memory["high"] and memory["verdict"] == "fits"
    return None if good else f"{share} of what it allocates, {peak} of {memory}"


def budget_of_a_transformer(session):
    """A budget holds for the same run again, and names the growth of a larger one."""
    small, again, large = (session.run("sizes.py", batch, "384", settings=settings)[2][-1]
                           for batch, settings in (("8", ""), ("8", "max_split_size_mb:64"), ("16", "")))
    budget = small.parent.parent / "memory.budget"
    session.command("budget", small, "-o", budget)
    answers = [json.loads(session.command("diff", "--budget", budget, "--json", profile)) for profile in (again, large)]
    grown = [[row["growth"] for row in answer["rows"] if row.get("growth", 0) > 0] for answer in answers]
    return None if not grown[0] and grown[1] else f"{answers}"


def simulate_of_a_program(session):
    """`hbmprof simulate` says for each setting the peaks that PyTorch says of a program that runs with it, from its
    snapshot and from a recording."""
    runner = session.runner
    peaks = {}
    folder = runner.results / "simulate"
    folder.mkdir(parents=True, exist_ok=True)
    choices = ["default", "expandable_segments:True", "max_split_size_mb:128"]
    for settings in choices:
        environment = runner.environment("torch", "" if settings == "default" else settings, folder=folder)
        done = subprocess.run(["python3", str(pathlib.Path(__file__).parent / "programs/requests_of_a_server.py"),
                               str(folder / f"{settings}.pickle")], capture_output=True, text=True, env=environment,
                              timeout=300)
        if done.returncode:
            return done.stderr
        peaks[settings] = json.loads(done.stdout)
    environment = runner.environment("torch", folder=folder)
    options = [word for settings in choices for word in ("--alloc-conf", settings)]
    for recorded in choices:
        settings = "" if recorded == "default" else recorded
        _, _, profiles = session.run("requests_of_a_server.py", str(folder / "again.pickle"), settings=settings,
                                     options=("--record",))
        recording = next(profiles[0].parent.glob("*.hbmrec"))
        for source in ([folder / f"{recorded}.pickle"], [recording, "--recorded-conf", recorded]):
            done = subprocess.run([runner.command, "simulate", *source, *options, "--json"], capture_output=True,
                                  text=True, env=environment, timeout=300)
            answer = json.loads(done.stdout) if done.stdout else {"exact": False, "error": done.stderr}
            rows = {row["settings"]: [row["reserved_peak"], row["allocated_peak"]] for row in answer.get("rows", ())}
            # A recording has the sizes of blocks, which another setting can make smaller.
            expected = {name: [reserved, allocated if len(source) == 1 or name == recorded else rows[name][1]]
                        for name, (reserved, allocated) in peaks.items()}
            if not answer["exact"] or rows != expected:
                return f"{source}: {answer}, not {peaks}"
    return None


def documented_answers(session):
    """The substitutes answer as NVIDIA's documentation says."""
    _, output, _ = session.run("answers.py")
    return None if "done" in output and "differs" not in output else output


CHECKS = [jax_manual, pages, tensorflow_pages, npu_pages, peak_of_tensors, context_with_expandable_segments, ranks_differ,
          simulate_of_a_program, frames_of_a_deep_stack, lines_of_the_program, generated_code,
          operators_of_the_backward_pass, forward_line, second_recording, pytest_limits, leak_after_attach, leak_on_npu,
          components_on_npu, out_of_memory_on_npu, jax_under_run, use_with_jax_cuda, killed_process, whole_segment,
          phases_and_kernels, kernel_code, fit_of_a_transformer, budget_of_a_transformer, end_after_backward, documented_answers]
