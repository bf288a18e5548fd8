#include "runtime/commands/algorithm_loss.h"

#include <algorithm>

namespace ofsdp::runtime {
namespace {

class LossWriter {
 public:
  LossWriter(const ModelSetup& setup, AlgorithmBuilder& builder)
      : setup_(setup), spec_(setup.loss), b_(builder) {}

  Result<std::string> write() {
    OFSDP_RETURN_IF_ERROR(check());
    if (spec_.kind == LossKind::kOutput) return spec_.output;
    const std::string column = label_column(setup_.graph, spec_);
    if (!column.empty()) b_.input(column, label_dtype(spec_), setup_.rows.at(column));
    const std::string loss = value();
    b_.output(loss, {DType::kFloat32, Shape{}});
    return loss;
  }

 private:
  Status check() const {
    if (spec_.kind == LossKind::kOperator) {
      return input_error("--loss plugin:{}: has no form in standard operators", spec_.output);
    }
    if (spec_.label_smoothing == 0) return {};
    return input_error("--label-smoothing: no standard operator has it");
  }

  std::string value() {
    const std::string labels = b_.add1("Reshape", {spec_.labels, b_.ints("all", {-1})});
    switch (spec_.kind) {
      case LossKind::kCrossEntropy:
        return class_loss("SoftmaxCrossEntropyLoss", labels);
      case LossKind::kNll:
        return class_loss("NegativeLogLikelihoodLoss", labels);
      case LossKind::kMse:
        return mean_square(flat(), labels);
      default:
        return logits_loss(flat(), labels);
    }
  }

  std::string flat() { return b_.add1("Reshape", {spec_.prediction, b_.ints("all", {-1})}); }

  std::string class_loss(const char* op, const std::string& labels) {
    const std::string rows =
        b_.add1("Reshape", {spec_.prediction, b_.ints("rows", {-1, setup_.count.classes})});
    return b_.add1(op, {rows, labels},
                   {{"reduction", std::string("mean")}, {"ignore_index", spec_.ignore_index}},
                   "loss");
  }

  std::string mean(const std::string& values) {
    return b_.add1("ReduceMean", {values}, {{"keepdims", int64_t{0}}}, "loss");
  }

  std::string mean_square(const std::string& x, const std::string& t) {
    const std::string d = b_.add1("Sub", {x, t});
    return mean(b_.add1("Mul", {d, d}));
  }

  // max(x, 0) - x t + ln(1 + e^-|x|)
  std::string logits_loss(const std::string& x, const std::string& t) {
    const std::string tail = b_.add1("Softplus", {b_.add1("Neg", {b_.add1("Abs", {x})})});
    const std::string line = b_.add1("Sub", {b_.add1("Relu", {x}), b_.add1("Mul", {x, t})});
    return mean(b_.add1("Add", {line, tail}));
  }

  const ModelSetup& setup_;
  const LossSpec& spec_;
  AlgorithmBuilder& b_;
};

}  // namespace

Result<std::string> write_loss(const ModelSetup& setup, AlgorithmBuilder& builder) {
  return LossWriter(setup, builder).write();
}

}  // namespace ofsdp::runtime
