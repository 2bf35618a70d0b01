"""python3 -m unittest discover gates/gpu: what needs no GPU."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import kernels  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("measure", str(HERE / "measure"))
measure = importlib.util.module_from_spec(importlib.util.spec_from_loader("measure", LOADER))
LOADER.exec_module(measure)

OUTPUT = """\
==PROF== Connected to process 7
{"schema_version": 1}
"ID","Kernel Name","Grid Size","gpu__time_duration.sum","dram__bytes.sum","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","sm__throughput.avg.pct_of_peak_sustained_elapsed"
"","","","ns","byte","%","%"
"0","linear_few(Linear)","(132, 1, 1)","10,000","40,000,000","80.0","30.0"
"1","rms_norm_row(RmsNormArgs)","(1, 1, 1)","2,000","10,000","1.0","2.0"
"2","linear_few(Linear)","(132, 1, 1)","30,000","120,000,000","90.0","30.0"
==PROF== Disconnected
"""


class Kernels(unittest.TestCase):
    def test_launches_are_summed_by_kernel(self):
        found = kernels.summarise(kernels.parse(OUTPUT))
        self.assertEqual([one["kernel"] for one in found], ["linear_few", "rms_norm_row"])
        first = found[0]
        self.assertEqual((first["launches"], first["us"], first["bytes"]), (2, 40.0, 160_000_000))
        self.assertAlmostEqual(first["memory_busy"], 0.875)
        self.assertEqual([one["limit"] for one in found], ["memory", "latency"])
        lines = kernels.table({"step": "decode, 1 row", "kernels": found}, 4e12)
        self.assertIn("  4000   100 %  memory", lines[2])

    def test_no_table_is_an_error(self):
        with self.assertRaises(ValueError):
            kernels.parse("==ERROR== no permission\n")


class Bars(unittest.TestCase):
    record = {
        "machine": {"torch_matmul": {"tflop_per_s": 800.0, "torch": "2"}},
        "decode": {"rows": [{"concurrency": 1, "decode_roofline_fraction": 0.66}, {"concurrency": 8, "decode_roofline_fraction": 0.5}]},
        "prefill": {"rows": [{"prefill_flops": {"linear": 280e12, "attention": 1}, "ttft_ms": 1000.0}]},
        "first_token": {"median_s": 1.5},
    }

    def test_each_bar_is_judged(self):
        met = {bar["name"]: (bar["value"], bar["met"]) for bar in measure.bars(self.record)}
        self.assertEqual(met["decode of 1, share of the bytes bound"], (0.66, True))
        self.assertEqual(met["decode of 8, share of the bytes bound"], (0.5, False))
        self.assertEqual(met["decode of 64, share of the bytes bound"], (None, False))
        self.assertEqual(met["prefill of 4096, share of the 8192^3 product"], (0.35, True))
        self.assertEqual(met["process start to first token, s"], (1.5, True))

    def test_what_was_not_measured_is_not_met(self):
        failed = {"machine": {"failed": "x"}, "decode": {"failed": "x"}, "prefill": {"failed": "x"}, "first_token": {"failed": "x"}}
        self.assertFalse(any(bar["met"] for record in ({}, failed) for bar in measure.bars(record)))


if __name__ == "__main__":
    unittest.main()
