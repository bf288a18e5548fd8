// Changes to a model before training: untied copies, a new head, adapters.
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
#include <string_view>
#include <vector>

#include "importer/edit/adapter_file.h"
#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/training_source.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

// Adapters (LoRA): each product y = x W with a chosen weight becomes y + alpha/rank * ((x A^T) B^T)
// with two new weights, NAME.lora_A.weight [rank, in] and NAME.lora_B.weight [out, rank], in
// float32 whatever the model computes in. For a convolution they also have axes with size 1.
//
// PEFT's rule draws A, and B is 0, or an adapter file has both. Products that share a weight share
// the adapter.
//
// Hu et al., "LoRA: low-rank adaptation of large language models", 2021; the names are PEFT's
// (https://github.com/huggingface/peft). Errors: kInput naming the flag.

class ModelEditor;

struct AdapterSpec {
  std::vector<std::string> patterns;  // from --lora
  int64_t rank = 8;
  std::optional<double> alpha;  // none: that of `from`, or 16
  double dropout = 0;
  std::string from;  // a safetensors file or ONNX Runtime's; empty: drawn
  uint64_t seed = 0;
  std::vector<std::string> whole = {};  // weights without an adapter, whatever the patterns

  double used_alpha() const { return alpha.value_or(16); }
};

struct Adapter {
  std::string name{};    // module NAME
  std::string weight{};  // initializer name
  int64_t rank = 0, in = 0, out = 0;
  bool in_by_out = false;        // how the weight is stored
  double scale = 1;              // alpha / rank
  std::string unmergeable = {};  // reason if B A cannot be added to the weight
  std::string a() const { return name + kAdapterA; }
  std::string b() const { return name + kAdapterB; }

  // weights[i] += scale * (B A)[first + i], in the weight's storage order.
  void add_to(int64_t first, std::span<float> weights, std::span<const float> a_values,
              std::span<const float> b_values) const;
};

Result<std::vector<Adapter>> add_adapters(ModelEditor& editor, const AdapterSpec& spec);

// A new Linear on the prediction.
struct AddedHead {
  int64_t outputs = 1;
  std::string name = "head";  // of its output; its weights are NAME.weight and NAME.bias

  std::vector<std::string> weights() const { return {name + ".weight", name + ".bias"}; }
};

struct ModelEdits {
  std::vector<std::string> untie;
  std::optional<int64_t> head;  // the new head's outputs
  std::optional<AddedHead> added{};
  std::string prediction;  // the prediction with the head; empty: the first
  AdapterSpec adapters;    // no patterns: none
  uint64_t seed = 0;

  bool any() const { return !untie.empty() || head || added || !adapters.patterns.empty(); }
};

struct EditedModel {
  std::shared_ptr<const OnnxFile> base;  // trained files are written from it
  OnnxFile file;                         // the model to train
  std::vector<Adapter> adapters;
  std::vector<std::string> added = {};  // weights of a new head, trained next to adapters
  std::vector<std::string> taken = {};  // weights whose values --lora-from has as a whole
  AdapterSpec spec = {};                // of the adapters
};

// Works without edits, too.
Result<EditedModel> edit_model(OnnxFile file, const ModelEdits& edits);

// Returns a warning if an exporter has merged copies in the file; else "".
Result<std::string> merged_copies_warning(const OnnxFile& file);

// Returns the edits as JSON; "" if there are none.
std::string text_of(const ModelEdits& edits);
Result<ModelEdits> edits_from(const std::string& text);

// A TrainingSource for an edited model. With adapters, the trained model is two files: the model
// with merged adapters, and the adapters alone.
//
//   --output FILE.onnx           W + alpha/rank * B A in the file's type; weights that --train
//                                names
//   --adapter FILE.safetensors   A, B and weights that --train names, in float32 under PEFT's
//                                names; FILE.onnx_adapter: the same as ONNX Runtime's adapter file
//
// Every rank writes its elements in A and B to a temporary adapter file; rank 0 merges after all
// have finished (`commit`). Errors: kInput naming --adapter if adapters cannot be merged.

// `adapter`: the adapter file's path; empty: none. `rules` may name adapter weights as
// NAME.lora_A.weight.
Result<std::unique_ptr<TrainingSource>> open_edited_source(EditedModel model,
                                                           const Operators& operators,
                                                           TrainedRules rules,
                                                           const std::string& adapter,
                                                           const WantedValues& wanted = {});

// Adds an adapter's product, from the checkpoint or file, to elements `first` ... in a weight.
// `read` returns all elements in A or B.
using ReadTensor = std::function<Status(const std::string& name, std::span<float> dst)>;
class AdapterMerge {
 public:
  static Result<AdapterMerge> make(const Adapter& adapter, const ReadTensor& read);
  void add_to(int64_t first, std::span<float> weights) const;

 private:
  explicit AdapterMerge(const Adapter& adapter) : adapter_(adapter) {}
  Adapter adapter_;
  std::vector<float> a_, b_;
};

// Returns whether the file `adapter` has weights besides adapters. `merged`: the run writes the
// merged model, too.
bool holds_whole_weights(const std::string& adapter, bool merged);
// Writes the adapter file of a model with adapters. `whole`: the weights besides them.
Status write_adapter(const EditedModel& model, const std::vector<std::string>& whole,
                     const std::string& path, const ReadTensor& read);

// Returns kInput if an adapter cannot be merged into the file that `flag` names.
Status check_mergeable(const std::vector<Adapter>& adapters, const std::string& flag);

}  // namespace ofsdp::importer
