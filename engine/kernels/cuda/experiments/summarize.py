"""Prints what a result of `run` says: equal bits, errors, and the best tile of each family at each row count.

    summarize.py RECORD.json
"""

import json
import sys
from collections import defaultdict


def main(path):
    with open(path) as file:
        record = json.load(file)
    results = record["results"]
    read = max(r["read_gb_per_s"] for r in results if r["kind"] == "probe")
    matmul = (record["torch_matmul"] or {}).get("tflop_per_s")
    print(f"{record['nvidia_smi']}; read {read} GB/s; torch 8192^3 {matmul} TFLOP/s")

    errors, bits = defaultdict(list), defaultdict(list)
    for r in results:
        if r["kind"] == "cpu_check":
            errors[r["family"], r["format"]].append(r)
        if r["kind"] == "bits":
            bits[r["family"], r["what"]].append(r)
    for key, rows in sorted(errors.items()):
        print(*key, "kernels x splits", len(rows), "good", sum(r["good"] for r in rows),
              "relative error", min(r["relative_error"] for r in rows), "to", max(r["relative_error"] for r in rows))
    for key, rows in sorted(bits.items()):
        print(*key, "| cases", len(rows), "elements", sum(r["elements"] for r in rows), "differing",
              sum(r["differing"] for r in rows), "worst ulp", max(r["worst_ulp"] for r in rows))

    times = defaultdict(list)
    for r in results:
        if r["kind"] == "time":
            times[r["format"], r["n"], r["k"], r["family"], r["splits"], r["rows"]].append(r)
    columns = sorted({key[-1] for key in times})
    print("best tile: us (of read rate | of torch)", *columns, sep=" ; ")
    for head in sorted({key[:-1] for key in times}):
        cells = []
        for rows in columns:
            best = min(times.get((*head, rows), []), key=lambda r: r["us"], default=None)
            if best is None:
                cells.append("-")
                continue
            share = best["weight_gb_per_s"] / read if rows <= 64 else best["tflop_per_s"] / (matmul or float("nan"))
            cells.append(f"{best['us']:.1f} ({share:.0%}, {best['tile_features']}x{best['tile_rows']})")
        print(*head, *cells, sep=" ; ")


main(sys.argv[1])
