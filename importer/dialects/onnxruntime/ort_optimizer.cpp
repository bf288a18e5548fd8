#include "importer/dialects/onnxruntime/ort_optimizer.h"

#include <onnx/onnx_pb.h>

#include <algorithm>

#include "importer/proto/onnx_protos.h"
#include "importer/proto/opset.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

class Reader {
 public:
  Reader(const std::string& path, const onnx::GraphProto& graph) : path_(path), graph_(graph) {}

  Result<OrtOptimizer> run() {
    for (const auto& node : graph_.node()) OFSDP_RETURN_IF_ERROR(take(node));
    OFSDP_REJECT_IF(update_ == nullptr,
                    "{}: expected a node AdamWOptimizer or SGDOptimizerV2, found none", path_);
    OFSDP_RETURN_IF_ERROR(check_wires());
    return made_;
  }

 private:
  Status take(const onnx::NodeProto& node) {
    const bool known = node.domain() == kMicrosoft;
    const std::string& op = node.op_type();
    if (known && op == "InplaceClipGradNorm" && clip_ == nullptr && update_ == nullptr) {
      clip_ = &node;
      made_.clip_norm = float_attribute(node, "max_norm", 1.0f);
      return ok_status();
    }
    if (known && update_ == nullptr && (op == "AdamWOptimizer" || op == "SGDOptimizerV2")) {
      update_ = &node;
      if (op == "AdamWOptimizer") return read_adamw(node);
      made_.kind = OrtOptimizer::Kind::kSgd;
      return ok_status();
    }
    return input_error(
        "{}: node '{}' ({}): expected one AdamWOptimizer or SGDOptimizerV2 over all parameters, "
        "after InplaceClipGradNorm or alone; other nodes may mix parameters, which are sharded",
        path_, node.name(), operator_name(node));
  }

  Status read_adamw(const onnx::NodeProto& node) {
    made_.kind = OrtOptimizer::Kind::kAdamW;
    made_.beta1 = float_attribute(node, "alpha", made_.beta1);
    made_.beta2 = float_attribute(node, "beta", made_.beta2);
    made_.eps = float_attribute(node, "epsilon", made_.eps);
    made_.weight_decay = float_attribute(node, "weight_decay", made_.weight_decay);
    made_.bias_correction = int_attribute(node, "correct_bias", 1) != 0;
    const int64_t mode = int_attribute(node, "adam_mode", 0);
    made_.transformers = mode == 1;
    if (mode == 0 || mode == 1) return ok_status();
    return input_error("{}: node '{}' (AdamWOptimizer): expected adam_mode 0 or 1, found {}", path_,
                       node.name(), mode);
  }

  bool is_input(const std::string& name) const {
    return std::ranges::any_of(graph_.input(), [&](const auto& v) { return v.name() == name; });
  }

  Status check_wires() const {
    const int gradients = made_.kind == OrtOptimizer::Kind::kSgd ? 2 : 3;
    for (int i = 0; i < update_->input_size(); ++i) {
      const bool clipped = clip_ != nullptr && i == gradients;
      const std::string& name = update_->input(i);
      if (clipped ? clip_->output_size() > 0 && clip_->output(0) == name : is_input(name)) continue;
      return input_error("{}: node '{}' ({}): expected input {} to be {}, found '{}'", path_,
                         update_->name(), update_->op_type(), i,
                         clipped ? "the clipped gradients" : "an input of the graph", name);
    }
    if (clip_ == nullptr || (clip_->input_size() == 1 && is_input(clip_->input(0)))) return {};
    return input_error("{}: node '{}' ({}): expected the gradients as its input", path_,
                       clip_->name(), clip_->op_type());
  }

  const std::string& path_;
  const onnx::GraphProto& graph_;
  const onnx::NodeProto* clip_ = nullptr;
  const onnx::NodeProto* update_ = nullptr;
  OrtOptimizer made_;
};

}  // namespace

Result<OrtOptimizer> read_ort_optimizer(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(path));
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto model, parse_model(file));
  return Reader(path, model.graph()).run();
}

}  // namespace ofsdp::importer
