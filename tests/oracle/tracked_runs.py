#!/usr/bin/env python3
"""Checks the files of --log mlflow: and wandb: with MLflow and with Weights & Biases. A resumed run must be one run,
with the numbers of its metrics file and its configuration.

    tracked_runs.py FSDP_RUN      exit status 77, which CTest shows as skipped, without one of the packages

OFSDP_TRACKERS_PYTHON names a Python that has mlflow or mlflow-skinny and wandb. Up to 0.19, wandb's own reader in
Python reads the file. From 0.20 on `wandb sync` sends it to a server on this machine, which accepts all data.
"""
import gzip
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

CASE = pathlib.Path(__file__).resolve().parents[1] / "fixtures/mlp"

python = os.environ.get("OFSDP_TRACKERS_PYTHON")
if python and "OFSDP_TRACKERS_ASKED" not in os.environ:
    os.execve(python, [python, *sys.argv], {**os.environ, "OFSDP_TRACKERS_ASKED": "1"})
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
MlflowClient = DataStore = wandb = None
missing = []
try:
    from mlflow.tracking import MlflowClient
except ImportError as error:
    missing.append(error)
try:
    import wandb
    wandb._assert_is_internal_process = True
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore
except ImportError as error:
    if wandb is None:
        missing.append(error)


def train(program, folder, *more):
    subprocess.run([program, CASE / "model.onnx", "--data", CASE / "data", "--eval-data", CASE / "data", "--loss", "cross_entropy",
                    "--lr", "0.05", "--no-shuffle", "--eval-interval", "2step", "--checkpoint-dir", folder / "ck",
                    "--checkpoint-interval", "3step", "--metrics", folder / "m.jsonl", "--log", f"mlflow:{folder}/mlruns",
                    "--log", f"wandb:{folder}", *more], check=True, stdout=subprocess.DEVNULL)


def expected_scalars(folder):
    """Maps steps to values in the metrics file: the last row of a step counts."""
    found = {}
    for line in (folder / "m.jsonl").read_text().splitlines():
        row = json.loads(line)
        for key, value in row.items():
            if row["kind"] != "end" and isinstance(value, (int, float)) and key != "step":
                found[f"{row['kind']}/{key}", row["step"]] = value
    return found


def check_mlflow(folder, expected):
    client = MlflowClient(tracking_uri=f"file:{folder}/mlruns")
    assert sorted(e.name for e in client.search_experiments()) == ["Default", "onnx-fsdp"]
    experiment = client.get_experiment_by_name("onnx-fsdp").experiment_id
    run, = client.search_runs([experiment])
    assert run.info.status == "FINISHED" and run.info.run_name == "model", run.info
    assert run.data.params["lr"] == "0.05" and run.data.params["optimizer"], run.data.params
    assert run.data.metrics["end/median_step_ms"] > 0
    found = {(name, point.step): point.value for name in run.data.metrics
             for point in client.get_metric_history(run.info.run_id, name)}
    assert {key: value for key, value in found.items() if not key[0].startswith("end/")} == expected
    print("mlflow reads the run:", len(found), "numbers")


def check_wandb(folder, expected):
    file, = folder.glob("wandb/offline-run-*/run-*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    records = []
    while (data := store.scan_data()) is not None:
        records.append(wandb_internal_pb2.Record.FromString(data))
    assert [r.num for r in records] == list(range(1, len(records) + 1))
    kinds = [r.WhichOneof("record_type") for r in records]
    assert kinds[:2] == ["header", "run"] and kinds.count("exit") == 1 and kinds[-1] == "exit", kinds
    config = {item.key: json.loads(item.value_json) for item in records[1].run.config.update}
    assert config["lr"] == 0.05 and config["loss"], config
    assert records[1].run.display_name == "model" and f"run-{records[1].run.run_id}.wandb" == file.name
    steps = [r.history.step.num for r in records if r.HasField("history")]
    assert steps == sorted(set(steps)), steps
    found = {(item.key, r.history.step.num): json.loads(item.value_json) for r in records for item in r.history.item}
    assert {key: value for key, value in found.items() if not key[0].startswith("_")} == expected
    summary = {item.key: item.value_json for r in records for item in r.summary.update}
    assert "end/seconds" in summary and json.loads(summary["_step"]) == steps[-1], summary
    print("wandb", wandb.__version__, "reads the run:", len(steps), "steps")


class Server(http.server.BaseHTTPRequestHandler):
    """The part of the service that `wandb sync` needs. It keeps the lines of each file and the configuration."""
    files, config = {}, {}

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def do_PUT(self):
        self.body()
        self.answer({})

    def do_POST(self):
        body = self.body()
        if self.path.endswith("file_stream"):
            for name, part in json.loads(body).get("files", {}).items():
                lines = self.files.setdefault(name, [])
                lines[part["offset"]:] = part["content"]
            return self.answer({})
        if not self.path.endswith("graphql"):
            return self.answer({})
        asked = json.loads(body)
        given = asked["variables"]
        if "upsertBucket" in asked["query"]:
            self.config.update(json.loads(given.get("config") or "{}"))
            bucket = {"id": "QQ==", "name": given.get("name"), "displayName": given.get("displayName"), "config": given.get("config"),
                      "project": {"id": "QQ==", "name": given.get("project"), "entity": {"id": "QQ==", "name": "me"}}}
            return self.answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        if "createRunFiles" in asked["query"]:
            address = f"http://127.0.0.1:{self.server.server_port}/file"
            files = [{"name": name, "uploadUrl": address} for name in given["files"]]
            return self.answer({"data": {"createRunFiles": {"runID": "QQ==", "uploadHeaders": [], "files": files}}})
        self.answer({"data": {}})

    def do_GET(self):
        self.answer({})

    def log_message(self, *_):
        pass


def check_sync(folder, expected):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    run, = folder.glob("wandb/offline-run-*")
    subprocess.run([sys.executable, "-m", "wandb", "sync", str(run)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   cwd=folder, timeout=200, env={**os.environ, "WANDB_BASE_URL": address, "WANDB_API_KEY": 40 * "a"})
    server.shutdown()
    rows = [json.loads(line) for line in Server.files["wandb-history.jsonl"]]
    found = {(key, row["_step"]): value for row in rows for key, value in row.items() if not key.startswith("_")}
    assert found == expected, set(found.items()) ^ set(expected.items())
    assert Server.config["lr"]["value"] == 0.05, Server.config
    assert "end/seconds" in json.loads(Server.files["wandb-summary.json"][-1])
    print("wandb", wandb.__version__, "sends the run:", len(rows), "steps")


def main():
    if len(missing) == 2:
        print("procs.tracked_runs is skipped:", *missing)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        train(sys.argv[1], folder, "--steps", "5")
        train(sys.argv[1], folder, "--steps", "9", "--resume", "latest")
        expected = expected_scalars(folder)
        assert ("step/loss", 9) in expected and ("eval/loss", 9) in expected
        if MlflowClient:
            check_mlflow(folder, expected)
        if DataStore:
            check_wandb(folder, expected)
        elif wandb:
            check_sync(folder, expected)
    for error in missing:
        print("left out:", error)


main()
