// Changes of a model before training: untied copies, a new head, adapters.
//
//   edits     order      `--output` writes
//   untie     first      the edited file
//   head      second     the edited file
//   adapters  last       the file before this edit, with the adapters merged into the weights
//
// A checkpoint keeps the edits as text, so `export` can repeat them. Errors: kInput naming the
// flag.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

// Adapters (LoRA): each product y = x W of a chosen weight becomes y + alpha/rank * ((x A^T) B^T)
// with two new weights, NAME.lora_A.weight [rank, in] and NAME.lora_B.weight [out, rank], in
// float32 whatever the model computes in. For a convolution they also have axes of 1.
//
// PEFT's rule draws A, and B is 0, or an adapter file has both. Products that share a weight share
// the adapter.
//
// Hu et al., "LoRA: low-rank adaptation of large language models", 2021; the names are those of
// PEFT (https://github.com/huggingface/peft). Errors: kInput naming the flag.

class ModelEditor;

struct AdapterSpec {
  std::vector<std::string> patterns;  // of --lora
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::string from;  // a safetensors file or ONNX Runtime's; empty: drawn
  uint64_t seed = 0;
};

struct Adapter {
  std::string name{};    // NAME of the module
  std::string weight{};  // name of the initializer
  int64_t rank = 0, in = 0, out = 0;
  bool in_by_out = false;        // how the weight is stored
  double scale = 1;              // alpha / rank
  std::string unmergeable = {};  // reason if the weight cannot take the product of B and A
  std::string a() const { return name + ".lora_A.weight"; }
  std::string b() const { return name + ".lora_B.weight"; }

  // weights[i] += scale * (B A)[first + i], in the storage order of the weight.
  void add_to(int64_t first, std::span<float> weights, std::span<const float> a_values,
              std::span<const float> b_values) const;
};

// Returns the name of a tensor in an adapter file.
std::string adapter_file_name(const std::string& tensor);

Result<std::vector<Adapter>> add_adapters(ModelEditor& editor, const AdapterSpec& spec);

struct ModelEdits {
  std::vector<std::string> untie;
  std::optional<int64_t> head;  // outputs of the new head
  std::string prediction;       // the prediction with the head; empty: the first
  AdapterSpec adapters;         // no patterns: none
  uint64_t seed = 0;

  bool any() const { return !untie.empty() || head || !adapters.patterns.empty(); }
};

struct EditedModel {
  std::shared_ptr<const OnnxFile> base;  // trained files are written from it
  OnnxFile file;                         // the model to train
  std::vector<Adapter> adapters;
};

// Works without edits, too.
Result<EditedModel> edit_model(OnnxFile file, const ModelEdits& edits);

// Returns a warning if an exporter has merged copies in the file; else "".
Result<std::string> merged_copies_warning(const OnnxFile& file);

// Returns the edits as JSON without --lora-from, because a checkpoint has the values; "" if there
// are none.
std::string text_of(const ModelEdits& edits);
Result<ModelEdits> edits_from(const std::string& text);

}  // namespace ofsdp::importer
