// Adapters (LoRA): each product y = x W of a chosen weight becomes y + alpha/rank * ((x A^T) B^T)
// with two new weights, NAME.lora_A.weight [rank, in] and NAME.lora_B.weight [out, rank]; in
// float32, whatever the model computes in. A convolution's have axes of 1 after these.
//
// A is drawn as PEFT draws it and B is 0, or both are what an adapter file has. Products that share
// a weight share its adapter.
//
// Hu et al., "LoRA: low-rank adaptation of large language models", 2021; names are those of PEFT
// (https://github.com/huggingface/peft). Threads: any. Errors: kInput naming the flag.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::importer {

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
  std::string name{};    // NAME, of the module
  std::string weight{};  // the initializer
  int64_t rank = 0, in = 0, out = 0;
  bool in_by_out = false;        // how the weight is stored
  double scale = 1;              // alpha / rank
  std::string unmergeable = {};  // why the weight cannot take the product of B and A; empty: it can
  std::string a() const { return name + ".lora_A.weight"; }
  std::string b() const { return name + ".lora_B.weight"; }

  // weights[i] += scale * (B A)[first + i], in the order in which the weight is stored.
  void add_to(int64_t first, std::span<float> weights, std::span<const float> a_values,
              std::span<const float> b_values) const;
};

// The name of a tensor in an adapter file.
std::string adapter_file_name(const std::string& tensor);

Result<std::vector<Adapter>> add_adapters(ModelEditor& editor, const AdapterSpec& spec);

}  // namespace ofsdp::importer
