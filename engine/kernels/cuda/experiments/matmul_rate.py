"""The rate of PyTorch's 8192³ bf16 product on random data, as JSON; null where PyTorch or a GPU is missing."""

import json
import statistics
import sys

SIZE, RUNS = 8192, 15


def main():
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for run in range(-3, RUNS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(4):
            torch.matmul(a, b)
        end.record()
        end.synchronize()
        if run >= 0:
            seconds.append(start.elapsed_time(end) / 4e3)
    rate = 2 * SIZE**3 / statistics.median(seconds) * 1e-12
    return {"kind": "torch_matmul", "torch": torch.__version__, "size": SIZE, "runs": RUNS, "tflop_per_s": round(rate, 1)}


json.dump(main(), sys.stdout)
