#include "importer/edit/export_losses.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "importer/proto/onnx_protos.h"
#include "importer/write/state_dict.h"

namespace ofsdp::importer {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

constexpr int64_t kTable = 1024;       // elements of the smallest table that is compared
constexpr int64_t kVocabulary = 5000;  // rows; pretrained models have more

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Names that exporters make up. A module's own parameter may be named `weight_1`.
bool is_made_up(const std::string& name) {
  if (name.starts_with("onnx::"))
    return is_number(std::string_view(name).substr(name.rfind('_') + 1));
  if (is_number(name)) return true;
  static const std::set<std::string> kStems = {"val", "t", "permute", "transpose", "embedding"};
  const size_t end = name.rfind('_');
  return end != std::string::npos && kStems.contains(name.substr(0, end)) &&
         is_number(std::string_view(name).substr(end + 1));
}

const std::string* entry_of(const onnx::NodeProto& node, std::string_view key) {
  for (const auto& entry : node.metadata_props()) {
    if (entry.key() == key) return &entry.value();
  }
  return nullptr;
}

class LossFinder {
 public:
  LossFinder(const OnnxFile& file, const onnx::ModelProto& model, std::optional<StateDict> state)
      : file_(file), model_(model), state_(std::move(state)) {
    for (const Initializer& weight : file.initializers()) weights_[weight.name] = &weight;
    for (const auto& tensor : model.graph().initializer()) weights_.try_emplace(tensor.name());
    count(model.graph().node());
    for (const auto& function : model.functions()) count(function.node());
  }

  Result<ExportLosses> run() {
    find_renamed();
    find_folded();
    find_axes();
    losses_.undropped = lacks_dropout();
    OFSDP_RETURN_IF_ERROR(find_untied());
    return std::move(losses_);
  }

 private:
  void count(const Nodes& nodes) {
    for (const auto& node : nodes) {
      ++operators_[node.op_type()];
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) count(attribute.g().node());
      }
    }
  }

  int count_of(std::initializer_list<const char*> names) const {
    int sum = 0;
    for (const char* name : names) {
      const auto found = operators_.find(name);
      if (found != operators_.end()) sum += found->second;
    }
    return sum;
  }

  // Null for a value that is no initializer.
  const Initializer* weight(const onnx::NodeProto& node, int input) const {
    if (input >= node.input_size()) return nullptr;
    const auto found = weights_.find(node.input(input));
    return found == weights_.end() ? nullptr : found->second;
  }

  bool is_input(const std::string& name) const { return !weights_.contains(name); }

  void find_renamed() {
    if (state_) return;
    static const std::set<std::string> kReaders = {"MatMul", "Gemm", "Conv", "Gather", "Add"};
    std::set<std::string> found;
    for (const auto& node : model_.graph().node()) {
      if (!kReaders.contains(node.op_type())) continue;
      for (int i = 0; i < node.input_size(); ++i) {
        const Initializer* read = weight(node, i);
        if (read == nullptr || !is_made_up(read->name) || read->shape.rank() < 2) continue;
        const bool folded = node.op_type() == "Add";  // position embeddings, looked up
        if (folded != read->name.starts_with("embedding_")) continue;
        if (found.insert(read->name).second) losses_.renamed.push_back(read->name);
      }
    }
  }

  // Both exporters leave a sign: a rule's name, or new names for weight and bias together.
  void find_folded() {
    for (const auto& node : model_.graph().node()) {
      if (node.op_type() != "Conv") continue;
      const std::string* rules = entry_of(node, "pkg.onnxscript.rewriter.rule_name");
      const bool by_rule = rules != nullptr && rules->find("FuseBatchNorm") != std::string::npos;
      const Initializer *matrix = weight(node, 1), *bias = weight(node, 2);
      // Equal biases reach their nodes through an Identity.
      const bool own_bias = bias == nullptr || bias->name.starts_with("onnx::Conv_");
      const bool by_name = matrix != nullptr && matrix->name.starts_with("onnx::Conv_") &&
                           node.input_size() > 2 && own_bias;
      if (by_rule || by_name) losses_.folded.push_back(node.name());
    }
  }

  bool takes_tokens() const {
    return std::ranges::any_of(model_.graph().input(), [&](const onnx::ValueInfoProto& input) {
      return is_input(input.name()) && is_token_type(input);
    });
  }

  static bool is_token_type(const onnx::ValueInfoProto& input) {
    const int type = input.type().tensor_type().elem_type();
    return type == onnx::TensorProto::INT64 || type == onnx::TensorProto::INT32;
  }

  bool lacks_dropout() const {
    if (count_of({"Dropout", "RandomUniform", "RandomUniformLike", "Bernoulli"}) > 0) return false;
    if (state_) return !state_->training && state_->dropout > 0;
    const bool transformer = count_of({"Softmax", "Attention"}) > 0 &&
                             count_of({"LayerNormalization"}) > 1 && count_of({"Conv"}) == 0 &&
                             takes_tokens();
    return transformer && (!losses_.renamed.empty() || (is_known_to_drop() && has_vocabulary()));
  }

  bool has_vocabulary() const {
    return std::ranges::any_of(file_.initializers(), [](const Initializer& w) {
      return w.shape.rank() == 2 && w.shape[0] >= kVocabulary;
    });
  }

  // Classes whose configuration has dropout unless it is changed.
  bool is_known_to_drop() const {
    static constexpr std::array kClasses = {".BertLayer'",
                                            ".RobertaLayer'",
                                            ".GPT2Block'",
                                            ".ElectraLayer'",
                                            ".BartEncoderLayer'",
                                            ".TransformerBlock'",
                                            ".TransformerEncoderLayer'"};
    return std::ranges::any_of(model_.graph().node(), [](const onnx::NodeProto& node) {
      const std::string* classes = entry_of(node, "pkg.torch.onnx.class_hierarchy");
      return classes != nullptr && std::ranges::any_of(kClasses, [&](const char* name) {
               return classes->find(name) != std::string::npos;
             });
    });
  }

  static int64_t fixed(const onnx::ValueInfoProto& input, int axis) {
    const auto& shape = input.type().tensor_type().shape();
    return axis < shape.dim_size() && shape.dim(axis).has_dim_value() ? shape.dim(axis).dim_value()
                                                                      : 0;
  }

  // A state [layers, batch, width] has its batch on a later axis.
  static bool has_open_batch(const onnx::ValueInfoProto& input) {
    const auto& dims = input.type().tensor_type().shape().dim();
    return std::ranges::any_of(
        dims, [](const auto& dim) { return dim.dim_param().find("batch") != std::string::npos; });
  }

  void find_axes() {
    for (const auto& input : model_.graph().input()) {
      if (!is_input(input.name()) || !input.type().has_tensor_type()) continue;
      if (const int64_t size = fixed(input, 0); size > 0 && !has_open_batch(input)) {
        losses_.batch.push_back({input.name(), size});
      }
      const int64_t length = fixed(input, 1);
      const bool tokens =
          is_token_type(input) && input.type().tensor_type().shape().dim_size() == 2;
      if (tokens && length > 1 && takes_longer(length)) {
        losses_.sequences.push_back({input.name(), length});
      }
    }
  }

  bool takes_longer(int64_t length) const {
    return std::ranges::any_of(file_.initializers(), [&](const Initializer& w) {
      const bool table =
          w.name.find("position") != std::string::npos || w.name.find("wpe") != std::string::npos;
      if (table) return w.shape.rank() == 2 && w.shape[0] > length;
      const bool folded = w.name.starts_with("embedding_") && is_made_up(w.name);
      return folded && w.shape.rank() == 3 && w.shape[1] == length;
    });
  }

  Status find_untied() {
    if (state_) return ok_status();
    std::set<const Initializer*> tables, matrices;
    for (const auto& node : model_.graph().node()) {
      const Initializer* first = weight(node, 0);
      if (node.op_type() == "Gather" && is_table(first)) tables.insert(first);
      const bool product = node.op_type() == "MatMul" || node.op_type() == "Gemm";
      const Initializer* factor = weight(node, product ? 1 : 0);
      if ((product || node.op_type() == "Transpose") && is_table(factor)) matrices.insert(factor);
    }
    for (const Initializer& table : file_.initializers()) {
      if (!tables.contains(&table)) continue;
      for (const Initializer& matrix : file_.initializers()) {
        if (!matrices.contains(&matrix) || &matrix == &table) continue;
        OFSDP_ASSIGN_OR_RETURN(const bool same, holds_same(table, matrix));
        if (same) losses_.untied.emplace_back(table.name, matrix.name);
      }
    }
    return ok_status();
  }

  static bool is_table(const Initializer* w) {
    return w != nullptr && w->shape.rank() == 2 && w->shape.numel() >= kTable &&
           is_floating(w->dtype);
  }

  // Compares the first, the middle and the last row. Rows that are constant prove nothing.
  Result<bool> holds_same(const Initializer& table, const Initializer& matrix) const {
    const int64_t rows = table.shape[0], columns = table.shape[1];
    const bool straight = matrix.shape == table.shape;
    const bool turned = matrix.shape[0] == columns && matrix.shape[1] == rows;
    if (!straight && !turned) return false;
    bool varies = false;
    for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
      OFSDP_ASSIGN_OR_RETURN(const auto values, run_of(table, row * columns, columns, 1));
      bool same = false;
      if (straight) {
        OFSDP_ASSIGN_OR_RETURN(const auto others, run_of(matrix, row * columns, columns, 1));
        same = values == others;
      }
      if (!same && turned) {
        OFSDP_ASSIGN_OR_RETURN(const auto others, run_of(matrix, row, columns, rows));
        same = values == others;
      }
      if (!same) return false;
      varies = varies || values.front() != values.back();
    }
    return varies;
  }

  Result<std::vector<float>> run_of(const Initializer& w, int64_t first, int64_t count,
                                    int64_t stride) const {
    std::vector<float> values(static_cast<size_t>(count));
    if (stride == 1) {
      OFSDP_RETURN_IF_ERROR(file_.read(w, first, values));
      return values;
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto one = std::span(values).subspan(static_cast<size_t>(i), 1);
      OFSDP_RETURN_IF_ERROR(file_.read(w, first + i * stride, one));
    }
    return values;
  }

  const OnnxFile& file_;
  const onnx::ModelProto& model_;
  const std::optional<StateDict> state_;
  std::map<std::string, const Initializer*> weights_;  // initializers; null for other types
  std::map<std::string, int> operators_;
  ExportLosses losses_;
};

}  // namespace

Result<ExportLosses> export_losses(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto model, parse_model(file));
  if (model.producer_name() != "pytorch") return ExportLosses{};
  OFSDP_ASSIGN_OR_RETURN(std::optional<StateDict> state, state_dict_of(file));
  return LossFinder(file, model, std::move(state)).run();
}

}  // namespace ofsdp::importer
