#!/usr/bin/env python3
"""Tests the Python package against the command line: the same bits, its errors, Ctrl-C, exceptions and dead ranks.

    library_test.py SOURCE_FOLDER BUILD_FOLDER [TEST...]

Needs numpy.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

SOURCE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
os.environ["OFSDP_LIBRARY"] = str(BUILD / "libonnx_fsdp.so")
os.environ["OFSDP_RUN_DIR"] = "none"  # the command's own runs keep no folder
sys.path.insert(0, str(SOURCE / "python"))

import numpy  # noqa: E402
import onnx_fsdp  # noqa: E402

CASE = SOURCE / "tests/fixtures/mlp"
MODEL = CASE / "model.onnx"
DATA = {name: numpy.load(CASE / f"data/{name}.npy") for name in ("x", "labels")}
OPTIONS = {"loss": "cross_entropy", "optimizer": "adamw", "lr": 0.01, "clip_grad_norm": 1.0, "threads": 1}


def command_line(*words, **options):
    """Returns the losses of an fsdp-run command."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        flags = [text for name, value in {**OPTIONS, **options}.items()
                 for text in ("--" + name.replace("_", "-"), str(value))]
        subprocess.run([BUILD / "fsdp-run", MODEL, "--no-shuffle", "--metrics", metrics, *words, *flags], check=True,
                       stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "step"]


def nine_digits(losses):
    return [f"{loss:.9g}" for loss in losses]


def children():
    """Returns the ids of this process's children and their descendants."""
    found, parents = [], {str(os.getpid())}
    listed = subprocess.run(["ps", "-eo", "pid,ppid,comm", "--no-headers"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        pid, parent, name = line.split(None, 2)
        if parent in parents and name != "ps":
            parents.add(pid)
            found.append(int(pid))
    return found


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Bits(unittest.TestCase):
    def test_a_run_on_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = pathlib.Path(folder) / "a.onnx", pathlib.Path(folder) / "b.onnx"
            result = onnx_fsdp.train(MODEL, data=DATA, shuffle=False, nproc_per_node=2, global_batch_size=24, output=ours,
                                     **OPTIONS)
            losses = command_line(nproc_per_node=2, global_batch_size=24, output=theirs)
            self.assertEqual(nine_digits(result.losses), nine_digits(losses))
            self.assertEqual(ours.read_bytes(), theirs.read_bytes())
        self.assertEqual(result.end["steps"], 8)

    def test_a_trainer_with_a_short_last_batch(self):
        with tempfile.TemporaryDirectory() as folder, onnx_fsdp.Trainer(MODEL, **OPTIONS) as trainer:
            ours, theirs = pathlib.Path(folder) / "a.onnx", pathlib.Path(folder) / "b.onnx"
            losses = [trainer.step({name: rows[i:i + 50] for name, rows in DATA.items()}) for i in range(0, 192, 50)]
            trainer.save(ours)
            self.assertEqual(nine_digits(losses), nine_digits(command_line(global_batch_size=50, output=theirs)))
            self.assertEqual(ours.read_bytes(), theirs.read_bytes())
            self.assertEqual([loss.step for loss in losses], [1, 2, 3, 4])

    def test_a_trainer_that_accumulates(self):
        with onnx_fsdp.Trainer(MODEL, grad_accum=3, **OPTIONS) as trainer:
            losses = [trainer.step({name: rows[i:i + 24] for name, rows in DATA.items()}) for i in range(0, 192, 24)]
        self.assertEqual(nine_digits(losses), nine_digits(command_line(grad_accum=3, global_batch_size=24)))

    def test_evaluation(self):
        row = onnx_fsdp.evaluate(MODEL, data=DATA, eval_data=DATA, **OPTIONS)
        with onnx_fsdp.Trainer(MODEL, batch_size=8, **OPTIONS) as trainer:
            found = trainer.evaluate(DATA)
        self.assertEqual((f"{found.loss:.9g}", found.accuracy), (f"{row['loss']:.9g}", row["accuracy"]))
        self.assertEqual(onnx_fsdp.evaluate(MODEL, data=DATA, **OPTIONS)["loss"], row["loss"])
        self.assertEqual(onnx_fsdp.evaluate(MODEL, eval_data=DATA, **OPTIONS)["loss"], row["loss"])

    def test_scores_of_more_rows_than_the_first_call_had(self):
        labels = numpy.random.default_rng(1).integers(0, 2, (192, 5)).astype("float32")
        data = {"x": DATA["x"], "labels": labels}
        options = {**OPTIONS, "loss": "bce_with_logits", "eval_metrics": "auc", "batch_size": 8}
        row = onnx_fsdp.evaluate(MODEL, data=data, eval_data=data, **options)
        with onnx_fsdp.Trainer(MODEL, **options) as trainer:
            trainer.evaluate({name: rows[:8] for name, rows in data.items()})
            found = trainer.evaluate(data)
        self.assertEqual(found.metrics["auc"], row["auc"])

    def test_check_compares_loss_and_gradients(self):
        found = onnx_fsdp.check(MODEL, directions=2, **OPTIONS)
        ours, reference = found["loss"]
        self.assertLess(abs(ours - reference), 2e-4 * abs(reference))
        self.assertEqual(found["not_checked"], [])
        self.assertLess(max(found["parameters"].values()), 2e-3)
        self.assertIn(found["worst"], found["parameters"])
        self.assertEqual(found["rounding"], {})
        self.assertIsNone(found["node"])

    def test_the_plan_is_the_runs(self):
        plan = onnx_fsdp.plan(MODEL, nproc_per_node=2, **OPTIONS)
        result = onnx_fsdp.train(MODEL, nproc_per_node=2, **OPTIONS)
        self.assertEqual([plan.peak_bytes, plan.peak_bytes], result.end["planned_peak_bytes"])
        self.assertGreater(len(plan.steps), len(plan.units))
        self.assertTrue(plan.html().startswith("<!"))


RANK = """
import json, sys, numpy, onnx_fsdp
rank, folder, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
data = {name: numpy.load(f"{folder}/data/{name}.npy") for name in ("x", "labels")}
losses = []
with onnx_fsdp.Trainer(f"{folder}/model.onnx", **json.loads(sys.argv[4])) as trainer:
    for i in range(0, 192, 48):
        losses.append(trainer.step({name: rows[i:i + 48][rank::2] for name, rows in data.items()}))
    trainer.save(out)
    try:
        trainer.evaluate({name: rows[:25] for name, rows in data.items()})
    except onnx_fsdp.InputError as error:
        for part in ("the evaluation: on 2 ranks", "whole micro-batches of 24", "48 or a multiple", "found 25 on this rank"):
            assert part in str(error), error
print(json.dumps(losses))
"""


ENDLESS = """
import json, sys, numpy, onnx_fsdp
rank, folder = int(sys.argv[1]), sys.argv[2]
batch = {name: numpy.load(f"{folder}/data/{name}.npy")[rank::2] for name in ("x", "labels")}
with onnx_fsdp.Trainer(f"{folder}/model.onnx", **json.loads(sys.argv[4])) as trainer:
    trainer.step(batch)
    print("stepped", flush=True)
    while True:
        trainer.step(batch)
"""


class Samples(unittest.TestCase):
    def test_python_and_c_give_the_same(self):
        model = SOURCE / "samples/mnist/mnist.onnx"
        with tempfile.TemporaryDirectory() as folder:
            python, c = pathlib.Path(folder) / "python.onnx", pathlib.Path(folder) / "c.onnx"
            commands = [([sys.executable, SOURCE / "samples/library/train.py"], python),
                        ([BUILD / "tests/sample_library_train"], c)]
            environment = {**os.environ, "PYTHONPATH": str(SOURCE / "python"), "OMP_NUM_THREADS": "1"}
            printed = [subprocess.run([*command, model, out], env=environment, capture_output=True, check=True).stdout
                       for command, out in commands]
            self.assertEqual(*printed)
            self.assertEqual(python.read_bytes(), c.read_bytes())


class Ranks(unittest.TestCase):
    """Trainers in the environment of torchrun."""

    def start(self, rank, out, options, program=RANK):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                       "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000),
                       "TORCHELASTIC_RUN_ID": f"test-{os.getpid()}", "PYTHONPATH": str(SOURCE / "python")}
        return subprocess.Popen([sys.executable, "-c", program, str(rank), CASE, out, json.dumps(options)], env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_two_processes_give_the_bits_of_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = pathlib.Path(folder) / "a.onnx", pathlib.Path(folder) / "b.onnx"
            ends = [process.communicate(timeout=60) for process in [self.start(rank, ours, OPTIONS) for rank in (0, 1)]]
            self.assertEqual([error for _, error in ends], ["", ""])
            losses = [json.loads(out) for out, _ in ends]
            self.assertEqual(losses[0], losses[1])
            expected = command_line(nproc_per_node=2, global_batch_size=48, output=theirs)
            self.assertEqual(nine_digits(losses[0]), nine_digits(expected))
            self.assertEqual(ours.read_bytes(), theirs.read_bytes())

    def test_a_wrong_option_of_one(self):
        options = {**OPTIONS, "timeout": 20}
        with tempfile.TemporaryDirectory() as folder:
            waiting = self.start(0, pathlib.Path(folder) / "a.onnx", options)
            wrong = self.start(1, pathlib.Path(folder) / "nowhere" / "a.onnx", {**options, "lr": -1})
            _, error = wrong.communicate(timeout=60)
            self.assertIn("InputError: --lr: expected", error)
            waiting.kill()  # it waits for a rank that never came, as long as --timeout says
            waiting.communicate()

    def test_a_dead_one_ends_the_other(self):
        options = {**OPTIONS, "timeout": 20}
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "a.onnx"
            alive, dead = (self.start(rank, out, options, ENDLESS) for rank in (0, 1))
            self.assertEqual(dead.stdout.readline(), "stepped\n")
            dead.kill()
            dead.communicate()
            _, error = alive.communicate(timeout=60)
            self.assertIn("RunError: rank 1", error)
            self.assertEqual(alive.returncode, 1)


ORPHANED = """
import json, os, sys, numpy, onnx_fsdp
folder = sys.argv[1]
batch = {name: numpy.load(f"{folder}/data/{name}.npy") for name in ("x", "labels")}
trainer = onnx_fsdp.Trainer(f"{folder}/model.onnx", nproc_per_node=2, **json.loads(sys.argv[2]))
trainer.step(batch)
print("stepped", flush=True)
while True:
    trainer.step(batch)
"""


class OwnRanks(unittest.TestCase):
    """Trainers that start their ranks."""

    def tearDown(self):
        self.assertEqual(children(), [])  # close waits for them

    def test_the_bits_of_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder, onnx_fsdp.Trainer(MODEL, nproc_per_node=2, **OPTIONS) as trainer:
            ours, theirs = pathlib.Path(folder) / "a.onnx", pathlib.Path(folder) / "b.onnx"
            losses = [trainer.step({name: rows[i:i + 48] for name, rows in DATA.items()}) for i in range(0, 192, 48)]
            trainer.save(ours)
            self.assertEqual(len(children()), 2)
            expected = command_line(nproc_per_node=2, global_batch_size=48, output=theirs)
            self.assertEqual(nine_digits(losses), nine_digits(expected))
            self.assertEqual(ours.read_bytes(), theirs.read_bytes())
            self.assertEqual([loss.step for loss in losses], [1, 2, 3, 4])
            found = trainer.evaluate(DATA)
            row = onnx_fsdp.evaluate(ours, data=DATA, eval_data=DATA, nproc_per_node=2, batch_size=24, **OPTIONS)
            self.assertEqual(found.accuracy, row["accuracy"])
            self.assertAlmostEqual(found.loss, row["loss"], places=6)

    def test_more_rows_than_the_first_call_had_and_strided_ones(self):
        with onnx_fsdp.Trainer(MODEL, nproc_per_node=2, batch_size=8, **OPTIONS) as trainer:
            small = trainer.evaluate({name: rows[:16] for name, rows in DATA.items()})
            large = trainer.evaluate({name: numpy.asfortranarray(numpy.repeat(rows[:16], 6, axis=0))
                                      for name, rows in DATA.items()})
            self.assertAlmostEqual(small.loss, large.loss, places=6)
            self.assertEqual(small.accuracy, large.accuracy)

    def test_mistakes(self):
        def refused(text, call):
            with self.assertRaises(onnx_fsdp.InputError) as caught:
                call()
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))

        for ranks in (0, True, "two"):
            refused("nproc_per_node: expected a number of ranks", lambda: onnx_fsdp.Trainer(MODEL, nproc_per_node=ranks))
        refused("--lr: expected", lambda: onnx_fsdp.Trainer(MODEL, nproc_per_node=2, **{**OPTIONS, "lr": -1}))
        with onnx_fsdp.Trainer(MODEL, nproc_per_node=2, **OPTIONS) as trainer:
            refused("array 'x': expected as many rows for each of 2 ranks, found 7",
                    lambda: trainer.step({name: rows[:7] for name, rows in DATA.items()}))
            refused("found 7 in all, which is no multiple of 2; onnx_fsdp.evaluate takes any number",
                    lambda: trainer.evaluate({name: rows[:7] for name, rows in DATA.items()}))
            refused("array 'x': expected one of float32", lambda: trainer.step({"x": numpy.array([1j])}))
            refused("parameters: expected a trainer in this process", trainer.parameters)
            trainer.step(DATA)  # a refused call reaches no rank
        refused("step: expected a trainer that is open", lambda: trainer.step(DATA))

    def test_a_warning_comes_once(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "deepspeed.json"
            config.write_text('{"wall_clock_breakdown": true}')
            program = ("import sys, onnx_fsdp\n"
                       "onnx_fsdp.Trainer(sys.argv[1], nproc_per_node=2, loss='cross_entropy', config=sys.argv[2]).close()")
            environment = {**os.environ, "PYTHONPATH": str(SOURCE / "python")}
            printed = subprocess.run([sys.executable, "-c", program, MODEL, config], env=environment, capture_output=True,
                                     text=True, check=True).stderr
            self.assertEqual(printed.count("without effect here: wall_clock_breakdown"), 1, printed)

    def test_a_wrong_label_of_one_rank(self):
        with onnx_fsdp.Trainer(MODEL, nproc_per_node=2, timeout=20, **OPTIONS) as trainer:
            labels = DATA["labels"].copy()
            labels[1] = 99
            with self.assertRaises(onnx_fsdp.InputError) as caught:
                trainer.step({**DATA, "labels": labels})
            self.assertIn("expected a label of 0..", str(caught.exception))

    def test_a_dead_rank(self):
        with onnx_fsdp.Trainer(MODEL, nproc_per_node=2, timeout=20, **OPTIONS) as trainer:
            trainer.step(DATA)
            os.kill(children()[-1], signal.SIGKILL)
            for _ in range(2):  # and it stays so
                with self.assertRaises(onnx_fsdp.RunError) as caught:
                    trainer.step(DATA)
                self.assertIn("rank 1", str(caught.exception))

    def test_one_that_cannot_start(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "python"
            program.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && exit 3\nexec {sys.executable} "$@"\n')
            program.chmod(0o755)
            with unittest.mock.patch("sys.executable", str(program)), \
                 unittest.mock.patch("onnx_fsdp._ranks._GRACE", 1.0), self.assertRaises(onnx_fsdp.RunError) as caught:
                onnx_fsdp.Trainer(MODEL, nproc_per_node=2, **OPTIONS)
            self.assertRegex(str(caught.exception), r"rank 1 \(process \d+\) ended with status 3")

    def test_after_ctrl_c_it_can_save(self):
        with tempfile.TemporaryDirectory() as folder, onnx_fsdp.Trainer(MODEL, nproc_per_node=2, **OPTIONS) as trainer:
            trainer.step(DATA)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                while True:
                    last = trainer.step(DATA).step
            self.assertIn(trainer.step(DATA).step - last, (1, 2))  # the interrupted call may have been made
            trainer.save(pathlib.Path(folder) / "a.onnx")

    def test_none_outlives_its_caller(self):
        environment = {**os.environ, "PYTHONPATH": str(SOURCE / "python")}
        caller = subprocess.Popen([sys.executable, "-c", ORPHANED, CASE, json.dumps(OPTIONS)], env=environment,
                                  stdout=subprocess.PIPE, text=True)
        self.assertEqual(caller.stdout.readline(), "stepped\n")
        ranks = [pid for pid in children() if pid != caller.pid]
        self.assertEqual(len(ranks), 2)
        caller.kill()
        caller.communicate()
        until = time.monotonic() + 5
        while any(map(alive, ranks)) and time.monotonic() < until:
            time.sleep(0.05)
        self.assertFalse(any(map(alive, ranks)))


class Parameters(unittest.TestCase):
    def test_views_follow_the_steps_and_outlive_the_trainer(self):
        batch = {name: rows[:24] for name, rows in DATA.items()}
        trainer = onnx_fsdp.Trainer(MODEL, **OPTIONS)
        trainer.step(batch)
        views = trainer.parameters()
        before = {name: view.copy() for name, view in views.items()}
        trainer.step(batch)
        self.assertTrue(all((views[name] != before[name]).any() for name in views))
        with self.assertRaises(ValueError):
            next(iter(views.values()))[...] = 0
        after = {name: view.copy() for name, view in views.items()}
        trainer.close()
        del trainer
        for name, view in views.items():
            numpy.testing.assert_array_equal(view, after[name])


class Mistakes(unittest.TestCase):
    def refused(self, text, call):
        with self.assertRaises(onnx_fsdp.InputError) as caught:
            call()
        self.assertIn(text, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_each_is_one_line(self):
        self.refused("no such file", lambda: onnx_fsdp.train("nowhere.onnx"))
        self.refused("did you mean '--lr'", lambda: onnx_fsdp.train(MODEL, lrr=1))
        self.refused("--output: expected an option of a trainer", lambda: onnx_fsdp.Trainer(MODEL, output="x.onnx"))
        self.refused("expected a label of 0..", lambda: onnx_fsdp.train(MODEL, data={**DATA, "labels": DATA["labels"] + 99},
                                                                        **OPTIONS))
        self.refused("array 'x': expected one of float32", lambda: onnx_fsdp.train(MODEL, data={"x": numpy.array([1j])}))
        with onnx_fsdp.Trainer(MODEL, **OPTIONS) as trainer:
            self.refused("expected a step", lambda: trainer.save("x.onnx"))
            trainer.step(DATA)
            self.refused("expected rows of float32[20]", lambda: trainer.step({**DATA, "x": DATA["x"][:, :5]}))
            self.refused("no column 'labels'", lambda: trainer.step({"x": DATA["x"]}))
            trainer.step(DATA)  # a refused batch changes nothing

    def test_the_model_is_no_output(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.onnx"
            model.write_bytes(pathlib.Path(MODEL).read_bytes())
            before, text = model.read_bytes(), "expected another file than the model"
            self.refused(text, lambda: onnx_fsdp.train(model, data=DATA, output=model, **OPTIONS))
            with onnx_fsdp.Trainer(model, **OPTIONS) as trainer:
                trainer.step(DATA)
                self.refused(text, lambda: trainer.save(model))
            self.assertEqual(model.read_bytes(), before)


class Ends(unittest.TestCase):
    """Long runs that something ends: no process of a run stays."""

    def train(self, **more):
        return onnx_fsdp.train(MODEL, data=DATA, nproc_per_node=2, batch_size=4, epochs=100000, **OPTIONS, **more)

    def tearDown(self):
        until = time.monotonic() + 5
        while children() and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(children(), [])

    def test_an_exception_of_the_caller(self):
        def refuse(row):
            raise KeyError(row["step"])
        with self.assertRaises(KeyError):
            self.train(on_row=refuse)

    def test_ctrl_c(self):
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            self.train()

    def test_a_dead_rank(self):
        def kill():
            os.kill(children()[-1], signal.SIGKILL)
        threading.Timer(1, kill).start()
        with self.assertRaises(onnx_fsdp.RunError) as caught:
            self.train(timeout=20)
        self.assertIn("rank", str(caught.exception))

    def test_rows_as_an_iterator(self):
        with onnx_fsdp.start(MODEL, data=DATA, nproc_per_node=2, epochs=100000, **OPTIONS) as run:
            self.assertEqual([next(run)["step"] for _ in range(3)], [1, 2, 3])
            run.stop()
            self.assertGreaterEqual(len(run.result().steps), 3)
            self.assertTrue(run.stopped)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
