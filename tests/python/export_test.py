#!/usr/bin/env python3
"""Tests onnx_fsdp.export with small random Hugging Face modules: exports, trains two updates with fsdp-run, and loads
the weights back. The module's outputs must then equal the ONNX file's. Also tests fsdp-run doctor's findings in worse
exports.

    export_test.py SOURCE_FOLDER BUILD_FOLDER [TEST...]

Exit status 77, which CTest shows as skipped, without torch, transformers, safetensors, onnx, onnxscript or onnxruntime.
OFSDP_TORCH_PYTHON names a Python that has them.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings

python = os.environ.get("OFSDP_TORCH_PYTHON")
if python and "OFSDP_TORCH_ASKED" not in os.environ:
    os.execve(python, [python, *sys.argv], {**os.environ, "OFSDP_TORCH_ASKED": "1"})
os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import numpy
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print("procs.python_export is skipped:", error)
    sys.exit(77)

SOURCE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
os.environ["OFSDP_LIBRARY"] = str(BUILD / "libonnx_fsdp.so")
sys.path.insert(0, str(SOURCE / "python"))

import onnx_fsdp  # noqa: E402

onnxruntime.set_default_logger_severity(3)
transformers.logging.set_verbosity_error()
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
NO_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def tokens(columns=7):
    return torch.randint(3, 60, (4, columns))


def bert():
    config = transformers.BertConfig(**SIZES, max_position_embeddings=20, num_labels=3)
    return transformers.BertForSequenceClassification(config), {
        "input_ids": tokens(), "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2] * 2)}


def gpt2():
    config = transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=2, n_positions=20, **NO_TOKENS)
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens()}


def llama():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, max_position_embeddings=20)
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens()}


def vit():
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=3)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(4, 3, 16, 16)}


def resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3)
    return transformers.ResNetForImageClassification(config), {"pixel_values": torch.randn(4, 3, 32, 32)}


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=10, max_target_positions=12,
        decoder_start_token_id=1, **NO_TOKENS)
    return transformers.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(4, 8, 20), "decoder_input_ids": tokens()}


def t5():
    config = transformers.T5Config(vocab_size=60, d_model=32, d_kv=16, num_layers=2, num_heads=2, d_ff=48,
                                   decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config), {
        "input_ids": tokens(), "attention_mask": torch.ones(4, 7, dtype=torch.int64), "decoder_input_ids": tokens(5)}


def fsdp_run(*words, check=True):
    done = subprocess.run([BUILD / "fsdp-run", *map(str, words)], capture_output=True, text=True)
    if check and done.returncode:
        raise AssertionError(f"{words}: {done.stderr}")
    return done


def quiet_export(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return onnx_fsdp.export(*arguments, **options)


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "m.onnx"

    def write_data(self, module, inputs):
        """Writes columns, and labels for the module's logits. Returns the training options."""
        with torch.no_grad():
            shape = module.eval()(**inputs).logits.shape
        (self.folder / "data").mkdir(exist_ok=True)
        for name, tensor in {**inputs, "labels": torch.randint(0, shape[-1], shape[:-1])}.items():
            numpy.save(self.folder / "data" / f"{name}.npy", tensor.numpy())
        return ["--data", self.folder / "data", "--loss", "cross_entropy", "--batch-size", 4, "--lr", 0.01, "--threads", 1]

    def findings(self, path, options):
        lines = fsdp_run("doctor", path, *options, "--steps", 3).stdout.splitlines()
        return [line.split(":")[0].lstrip("- ") for line in lines[:-1]]


class Families(Case):
    """A round trip for each family, by both exporters if the second one can."""

    def round_trip(self, make, exporter):
        module, inputs = make()
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        options = self.write_data(module, inputs)
        done = quiet_export(module, self.path, inputs, exporter=exporter)
        self.assertEqual(done.outputs, ["logits"])
        self.assertEqual(list(done.inputs), list(inputs))
        self.assertTrue(all(axes[0] == "batch" for axes in done.inputs.values()))
        self.assertEqual(done.unused, [])
        for name, tensor in module.state_dict().items():
            self.assertTrue(torch.equal(tensor, before[name]), name)
        self.assertEqual(self.findings(self.path, options), [])
        weights = self.folder / "w.safetensors"
        fsdp_run(self.path, *options, "--steps", 2, "--checkpoint-dir", self.folder / "ck", "--output", self.folder / "o.onnx")
        fsdp_run("export", self.folder / "ck", "--format", "safetensors", "-o", weights)
        fsdp_run("export", self.folder / "o.onnx", "--format", "safetensors", "-o", self.folder / "w2.safetensors")
        self.assertEqual(weights.read_bytes(), (self.folder / "w2.safetensors").read_bytes())
        fsdp_run("export", self.folder / "ck", "-o", self.folder / "i.onnx", "--inference")
        state = safetensors.torch.load_file(weights)
        self.assertEqual(list(state) and set(state), set(before))
        self.assertFalse(all(torch.equal(state[name], before[name]) for name in before))
        module.load_state_dict(state, strict=True)
        session = onnxruntime.InferenceSession(self.folder / "i.onnx", providers=["CPUExecutionProvider"])
        theirs = session.run(["logits"], {name: tensor.numpy() for name, tensor in inputs.items()})[0]
        with torch.no_grad():
            ours = module.eval()(**inputs).logits.numpy()
        self.assertLess(numpy.abs(ours - theirs).max(), 1e-4)

    def test_bert(self):
        self.round_trip(bert, "dynamo")

    def test_gpt2(self):
        self.round_trip(gpt2, "dynamo")

    def test_llama(self):
        self.round_trip(llama, "dynamo")

    def test_vit(self):
        self.round_trip(vit, "dynamo")

    def test_resnet(self):
        self.round_trip(resnet, "dynamo")

    def test_whisper(self):
        self.round_trip(whisper, "dynamo")

    def test_t5(self):
        self.round_trip(t5, "dynamo")

    def test_bert_by_torchscript(self):
        self.round_trip(bert, "torchscript")

    def test_resnet_by_torchscript(self):
        self.round_trip(resnet, "torchscript")

    def test_t5_by_torchscript(self):
        self.round_trip(t5, "torchscript")


class Units(Case):
    def test_blocks_of_a_t5(self):
        for exporter in ("dynamo", "torchscript"):
            module, inputs = t5()
            options = self.write_data(module, inputs)
            quiet_export(module, self.path, inputs, exporter=exporter)
            table = fsdp_run("plan", self.path, *options, "--verbose", "--nproc-per-node", 2).stdout
            blocks = [f"{part}.block.{i}" for part in ("encoder", "decoder") for i in range(2)]
            self.assertEqual(re.findall(r"^u\d+ +(\S+)", table, re.M), [*blocks, "root"])


class Doctor(Case):
    """The doctor finds each loss in exports as a newcomer writes them."""

    def exported(self, make, **options):
        module, inputs = make()
        data = self.write_data(module, inputs)
        module.config.use_cache = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module.eval(), (), self.path, kwargs=inputs, dynamo=True, verbose=False, external_data=False,
                              **options)
        return self.findings(self.path, data)

    def test_bert(self):
        found = self.exported(bert)
        self.assertEqual(found[1:], ["lost names", "no dropout", "fixed batch", "fixed length"])
        self.assertEqual(found[0], "merged copies")

    def test_gpt2_is_untied(self):
        self.assertIn("untied weights", self.exported(gpt2))

    def test_llama_has_no_dropout(self):
        self.assertEqual(self.exported(llama)[1:], ["lost names", "fixed batch"])

    def test_resnet_is_folded(self):
        self.assertEqual(self.exported(resnet), ["folded batch normalization", "fixed batch"])

    def test_resnet_with_what_keeps_it(self):
        found = self.exported(resnet, optimize=False, dynamic_shapes={"pixel_values": {0: "batch"}})
        self.assertEqual(found, ["frozen statistics"])

    def test_an_export_for_evaluation(self):
        module, inputs = bert()
        options = self.write_data(module, inputs)
        quiet_export(module, self.path, inputs, training=False)
        self.assertEqual(self.findings(self.path, options), ["no dropout"])


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(40, 32)
        self.mix = torch.nn.Linear(32, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.spare = torch.nn.Linear(32, 5)
        self.head = torch.nn.Linear(32, 40, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("count", torch.arange(6).reshape(2, 3))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, ids, weights=None):
        x = self.mix(self.table(ids)).mean(1)
        x = self.norm(x if weights is None else x * weights)
        return {"logits": self.head(x) * self.scale, "hidden": x, "more": (x, x)}


class Partly(torch.nn.Module):
    """A parameter and a buffer that no optimizer may change."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)
        self.first.weight.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 5))

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.scale)


class Modules(Case):
    def test_keys_that_the_file_lacks(self):
        module = Tied().eval()
        with self.assertWarnsRegex(UserWarning, "does not read spare.weight, spare.bias"):
            done = onnx_fsdp.export(module, self.path, torch.randint(0, 40, (1, 6)))
        self.assertEqual((done.outputs, done.unused), (["logits"], ["spare.weight", "spare.bias"]))
        self.assertFalse(any(part.training for part in module.modules()))
        self.assertNotIn("forward", vars(module))
        fsdp_run("export", self.path, "--format", "safetensors", "-o", self.folder / "w.safetensors")
        state = safetensors.torch.load_file(self.folder / "w.safetensors")
        self.assertEqual(set(state), set(module.state_dict()))
        for name, tensor in module.state_dict().items():
            self.assertEqual((state[name].dtype, state[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertTrue(torch.equal(state[name], tensor), name)

    def test_forms_of_inputs_and_names_of_outputs(self):
        module, ids, weights = Tied(), torch.randint(0, 40, (3, 6)), torch.ones(3, 32)
        for given in ((ids, weights), {"weights": weights, "ids": ids.numpy()}):
            done = quiet_export(module, self.path, given, outputs=["hidden", "logits"], dynamic_axes={"ids": {0: "n"}})
            self.assertEqual(done.inputs, {"ids": ["n", 6], "weights": [done.inputs["weights"][0], 32]})
            self.assertEqual(done.outputs, ["hidden", "logits"])
        self.assertTrue(module.training)
        with self.assertRaisesRegex(ValueError, "outputs: expected of logits, hidden, found x"):
            quiet_export(module, self.path, ids, outputs=["x"])
        with self.assertRaisesRegex(ValueError, "dynamic_axes: expected of ids, found y"):
            quiet_export(module, self.path, ids, dynamic_axes={"y": {}})

    def test_a_part_in_evaluation_mode_stays_so(self):
        module = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8),
                                     torch.nn.BatchNorm1d(8))
        module[0].eval()
        for exporter in ("dynamo", "torchscript"):
            quiet_export(module, self.path, torch.randn(3, 8), exporter=exporter)
            nodes = {node.op_type: node for node in onnx.load(self.path).graph.node}
            self.assertIn("Dropout", nodes)
            modes = [next((a.i for a in node.attribute if a.name == "training_mode"), 0)
                     for node in onnx.load(self.path).graph.node if node.op_type == "BatchNormalization"]
            self.assertEqual(modes, [0, 1], exporter)
        self.assertEqual([part.training for part in module], [False, True, True, True])

    def test_what_the_module_does_not_train_stays(self):
        for exporter in ("dynamo", "torchscript"):
            module = Partly()
            x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
            done = quiet_export(module, self.path, x[:2], exporter=exporter)
            self.assertEqual(done.frozen, ["first.weight"])
            (self.folder / "data").mkdir(exist_ok=True)
            numpy.save(self.folder / "data" / f"{list(done.inputs)[0]}.npy", x.numpy())
            numpy.save(self.folder / "data" / "labels.npy", labels.numpy())
            output = self.folder / "o.onnx"
            options = ["--data", self.folder / "data", "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", 0.1,
                       "--no-shuffle", "--batch-size", 4, "--steps", 4, "--threads", 1, "--output", output]
            said = fsdp_run(self.path, *options).stdout
            self.assertRegex(said, "in 3 of 5 tensors; 2 frozen by the module")
            optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
            for step in range(4):
                rows = slice(4 * (step % 2), 4 * (step % 2) + 4)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(x[rows]), labels[rows]).backward()
                optimizer.step()
            fsdp_run("export", output, "--format", "safetensors", "-o", self.folder / "w.safetensors")
            state = safetensors.torch.load_file(self.folder / "w.safetensors")
            for name, tensor in module.state_dict().items():
                self.assertLess((state[name] - tensor).abs().max(), 1e-5, name)
            self.assertEqual(onnx.load(self.path).metadata_props, onnx.load(output).metadata_props)
            self.assertIn("in 5 of 5 tensors", fsdp_run(self.path, *options, "--train", "*").stdout)

    def test_lost_weights_are_named(self):
        class Folded(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.deep = torch.nn.Linear(4, 4)

            def forward(self, x):
                return x @ torch.tensor(self.deep.weight.detach().numpy() * 2) + self.deep.bias

        # The weight enters as a constant, so no gradient reaches it: it is unused.
        with self.assertRaises(onnx_fsdp.ExportError), unittest.mock.patch("onnx_fsdp._export._Call.unread", return_value=[]):
            quiet_export(Folded(), self.path, torch.randn(3, 4), exporter="torchscript")
        self.assertFalse(self.path.exists())
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_weights_in_a_file_of_their_own(self):
        module, inputs = bert()
        with unittest.mock.patch("onnx_fsdp._export._EXTERNAL_BYTES", 1000):
            quiet_export(module, self.path, inputs)
        self.assertGreater(sum(file.stat().st_size for file in self.folder.iterdir() if file != self.path), 60000)
        fsdp_run("export", self.path, "--format", "safetensors", "-o", self.folder / "w.safetensors")
        module.load_state_dict(safetensors.torch.load_file(self.folder / "w.safetensors"), strict=True)

    def test_a_batch_with_labels(self):
        for make, names in ((t5, ["input_ids", "attention_mask", "decoder_input_ids"]), (gpt2, ["input_ids"])):
            module, inputs = make()
            inputs = {name: tensor for name, tensor in inputs.items() if name != "decoder_input_ids"}
            done = quiet_export(module, self.path, transformers.BatchEncoding({**inputs, "labels": tokens()}))
            self.assertEqual((list(done.inputs), done.outputs), (names, ["logits"]))

    def test_another_length_trains(self):
        module, inputs = bert()
        quiet_export(module, self.path, inputs)
        options = self.write_data(module, {name: tensor[:, :4] for name, tensor in inputs.items()})
        fsdp_run(self.path, *options, "--steps", 1, "--output", self.folder / "o.onnx")

    def test_the_entry_is_checked(self):
        module, inputs = bert()
        quiet_export(module, self.path, inputs)
        model = onnx.load(self.path)
        for text, part in (("[", "expected JSON"), ("{}", "of version 1"),
                           (json.dumps({"version": 1, "tensors": {"a": {"dtype": "I64", "shape": [2], "data": "AAAA"}}}),
                            "'a': expected 2 elements of int64")):
            onnx.helper.set_model_props(model, {"onnx_fsdp.state_dict": text})
            onnx.save(model, self.path)
            done = fsdp_run("export", self.path, "--format", "safetensors", "-o", self.folder / "w.safetensors", check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
