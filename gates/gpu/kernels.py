"""Each kernel of one step under Nsight Compute: launches, time, bytes of device memory, and what limits it."""

import collections
import csv
import io
import os
import pathlib
import subprocess

TIME, BYTES = "gpu__time_duration.sum", "dram__bytes.sum"
MEMORY_SHARE = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
UNIT_SHARE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
METRICS = [TIME, BYTES, MEMORY_SHARE, UNIT_SHARE]
# A kernel that keeps a unit busier than this is limited by it.
BUSY = 60.0
TIMEOUT = 150


def measure(setup, prompt, prefill, concurrency):
    """Decode steps of each concurrency after `prompt` tokens, and one prefill step of `prefill` tokens."""
    # All streams decode together only after the last prompt, so the first ones must still run then.
    steps = [(f"decode, {streams} rows", prompt, 32 + 2 * streams, streams, streams) for streams in concurrency]
    steps.append((f"prefill, {prefill} rows", prefill, 2, 1, prefill))
    found = []
    for name, tokens, decode, streams, rows in steps:
        launches = profile(setup.bench_command(tokens, decode, [streams], 1), rows)
        found.append({"step": name, "rows": rows, "kernels": summarise(launches)})
    return found


def profile(command, rows):
    """The launches of the second step of `rows` rows."""
    ncu = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none"]
    ncu += ["--metrics", ",".join(METRICS), "--csv", "--page", "raw", "--print-units", "base", "--target-processes", "all"]
    environment = {**os.environ, "ATLAS_CUDA_PROFILE_ROWS": str(rows)}
    run = subprocess.run(ncu + command, stdout=subprocess.PIPE, text=True, env=environment, timeout=TIMEOUT, check=True)
    return parse(run.stdout)


def parse(output):
    """Launches from the output, in which the program's and the profiler's own lines come before the table."""
    lines = output.splitlines()
    begin = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ValueError(f"ncu profiled nothing: {output[-300:]!r}")
    end = next((i for i in range(begin, len(lines)) if not lines[i].startswith('"')), len(lines))
    rows = csv.DictReader(io.StringIO("\n".join(lines[begin:end])))
    # The first row holds the units.
    return [row for row in rows if row["ID"].isdigit()]


def number(text):
    return float(text.replace(",", "") or 0)


def summarise(launches):
    """One entry a kernel, the longest first."""
    by_name = collections.defaultdict(list)
    for launch in launches:
        by_name[launch["Kernel Name"].split("(")[0]].append(launch)
    found = []
    for name, group in by_name.items():
        seconds = sum(number(launch[TIME]) for launch in group) * 1e-9
        weighted = lambda metric: sum(number(one[metric]) * number(one[TIME]) for one in group) * 1e-9 / seconds
        memory, units = weighted(MEMORY_SHARE), weighted(UNIT_SHARE)
        limit = "memory" if memory >= max(BUSY, units) else "multiprocessors" if units >= BUSY else "latency"
        found.append({
            "kernel": name,
            "launches": len(group),
            "us": round(seconds * 1e6, 2),
            "bytes": int(sum(number(launch[BYTES]) for launch in group)),
            "memory_busy": round(memory / 100, 3),
            "multiprocessors_busy": round(units / 100, 3),
            "limit": limit,
        })
    return sorted(found, key=lambda kernel: -kernel["us"])


def table(step, read_rate):
    """Lines for people."""
    total = sum(kernel["us"] for kernel in step["kernels"])
    lines = [
        f"{step['step']}: {total:.0f} us in kernels, one after the other",
        f"  {'kernel':28} {'n':>5} {'us':>9} {'share':>6} {'GB/s':>6} {'of read':>7}  limit",
    ]
    for kernel in step["kernels"]:
        rate = kernel["bytes"] / kernel["us"] * 1e6
        of_read = f"{100 * rate / read_rate:5.0f} %" if read_rate else "–"
        lines.append(
            f"  {kernel['kernel']:28} {kernel['launches']:5} {kernel['us']:9.1f} {100 * kernel['us'] / total:4.1f} % "
            f"{rate / 1e9:6.0f} {of_read:>7}  {kernel['limit']}"
        )
    return lines
