#include "tests/graphs/trial.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace ofsdp::graphs {
namespace {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double largest_slope(const Expected::Parameter& p) {
  double largest = 0;
  for (const Slope& slope : p.slopes) largest = std::max(largest, std::abs(slope.value));
  return largest;
}

// True if the graph cancels the derivative (for a bias before a softmax): the reference has 0, and
// `found` is a few units in the last place of the sums that cancel.
bool is_cancelled(const Expected::Parameter& p, double found, double of_all, bool narrow) {
  const double size = std::max(of_all, 1.0);
  return largest_slope(p) <= 1e-9 * size && std::abs(found) <= (narrow ? 1e-2 : 1e-5) * size;
}

struct Limits {
  double loss, slope;
  double unsteady;  // the part that rounding may explain

  explicit Limits(bool narrow)
      : loss(narrow ? 5e-3 : 2e-4), slope(narrow ? 5e-2 : 2e-3), unsteady(narrow ? 0.1 : 0.25) {}
};

// A derivative along direction `d` that differs by more than `limit`.
struct Misfit {
  const Expected::Parameter* parameter;
  size_t d;
  double found, limit;
  bool cancelled;

  double error() const { return std::abs(found - parameter->slopes[d].value); }
};

double derivative(const Trained& trained, const Expected::Parameter& p, size_t d) {
  const auto gradient = std::ranges::find(trained.gradients, p.name, &Gradient::name);
  return gradient == trained.gradients.end() ? 0 : dot(gradient->values, p.directions[d]);
}

double largest_of_all(const Expected& expected) {
  double of_all = 0;
  for (const auto& p : expected.parameters) of_all = std::max(of_all, largest_slope(p));
  return of_all;
}

// A derivative far below the others has lost its digits (the loss is near 1): a saturated Tanh.
double scale_of(const Expected::Parameter& p, double of_all) {
  return std::max({largest_slope(p), 1e-4 * of_all, 1e-3});
}

std::vector<Misfit> misfits_of(const Trained& found, const Expected& expected, bool narrow) {
  const double of_all = largest_of_all(expected);
  std::vector<Misfit> misfits;
  for (const auto& p : expected.parameters) {
    const double limit = Limits(narrow).slope * scale_of(p, of_all);
    for (size_t d = 0; d < p.slopes.size(); ++d) {
      if (p.slopes[d].kink) continue;
      const double here = derivative(found, p, d);
      const Misfit misfit{&p, d, here, limit, is_cancelled(p, here, of_all, narrow)};
      if (!(misfit.error() <= limit)) misfits.push_back(misfit);
    }
  }
  return misfits;
}

double loss_error(const Trained& found, const Expected& expected, bool narrow) {
  return std::abs(found.loss - expected.loss) /
         std::max(std::abs(expected.loss), narrow ? 0.1 : 1e-2);
}

// True if the reference itself moves with rounding.
bool is_unsteady(const Expected& expected, bool narrow) {
  const Limits limits(narrow);
  const double size = std::max(std::abs(expected.loss), narrow ? 0.1 : 1e-2);
  if (expected.unsteady_loss / size > limits.unsteady * limits.loss) return true;
  const double of_all = largest_of_all(expected);
  for (const auto& p : expected.parameters) {
    const double most = limits.unsteady * limits.slope * scale_of(p, of_all);
    for (size_t d = 0; d < p.slopes.size(); ++d) {
      if (p.slopes[d].kink) continue;
      if (p.unsteady[d] > most || p.slopes[d].error > most) return true;
    }
  }
  return false;
}

// The same model with each weight off by `rounding`.
Model disturbed(const Model& model, double rounding, uint64_t seed) {
  onnx::ModelProto proto;
  OFSDP_CHECK(proto.ParseFromString(model.bytes), "a model of its own");
  std::mt19937_64 random(seed);
  for (onnx::TensorProto& tensor : *proto.mutable_graph()->mutable_initializer()) {
    if (tensor.data_type() != onnx::TensorProto::FLOAT) continue;
    std::string& raw = *tensor.mutable_raw_data();
    for (size_t at = 0; at + sizeof(float) <= raw.size(); at += sizeof(float)) {
      float v = 0;
      std::memcpy(&v, raw.data() + at, sizeof(v));
      v *= 1 + static_cast<float>(random() % 2 == 0 ? rounding : -rounding);
      std::memcpy(raw.data() + at, &v, sizeof(v));
    }
  }
  Model made = model;
  made.bytes = proto.SerializeAsString();
  return made;
}

}  // namespace

Judgement judge(const Trained& found, const Expected& expected, bool narrow) {
  const std::vector<Misfit> misfits = misfits_of(found, expected, narrow);
  Judgement judged;
  if (!(loss_error(found, expected, narrow) <= Limits(narrow).loss)) {
    judged = {Verdict::kWrong,
              format_text("loss {:.9g}, expected {:.9g}", found.loss, expected.loss)};
  } else if (!misfits.empty()) {
    const Misfit& first = misfits.front();
    judged = {
        Verdict::kWrong,
        format_text("derivative of {} is {:.9g}, expected {:.9g} (scale {:.3g})",
                    first.parameter->name, first.found, first.parameter->slopes[first.d].value,
                    first.limit / Limits(narrow).slope)};
  }
  const bool cancelled = std::ranges::any_of(misfits, &Misfit::cancelled);
  if (judged.verdict == Verdict::kWrong && (cancelled || is_unsteady(expected, narrow))) {
    judged.verdict = Verdict::kUnsteady;
  }
  return judged;
}

// True if each wrong derivative is near the limit and the error jumps as the weights move.
// Backward loses digits where 1 - y^2 or p (dp - sum(p dp)) cancels in a saturated function; the
// reference has no backward and keeps them. The error of a wrong gradient moves as smoothly as the
// gradient.
Result<bool> Trial::jumps(const Way& way, const Trained& trained, const Expected& expected) const {
  constexpr double kNear = 5, kMoved = 0.03;
  constexpr uint64_t kTries = 6;
  std::vector<Misfit> misfits = misfits_of(trained, expected, false);
  if (!(loss_error(trained, expected, false) <= Limits(false).loss)) return false;
  if (std::ranges::any_of(misfits, [](const Misfit& m) { return m.error() > kNear * m.limit; })) {
    return false;
  }
  for (uint64_t i = 0; i < kTries && !misfits.empty(); ++i) {
    const Model moved = disturbed(model_, kMoved, model_.seed + i);
    OFSDP_ASSIGN_OR_RETURN(const Trained again, train(registry_, moved, way));
    OFSDP_ASSIGN_OR_RETURN(const Expected anew, expect(registry_, moved, way, 1e-6));
    std::erase_if(misfits, [&](const Misfit& m) {
      const auto p =
          std::ranges::find(anew.parameters, m.parameter->name, &Expected::Parameter::name);
      if (p == anew.parameters.end() || p->slopes[m.d].kink) return false;
      const double before = m.found - m.parameter->slopes[m.d].value;
      const double now = derivative(again, *p, m.d) - p->slopes[m.d].value;
      return now * before < 0 || std::abs(now) < 0.25 * std::abs(before);
    });
  }
  return misfits.empty();
}

// The reference reads the file as the product does: unrolled loops, old opsets, constants. The
// generator does not read it. Returns a line if the two differ.
std::string Trial::other_loss(const Expected& expected) const {
  if (!model_.loss) return {};
  const double limit = 1e-4 * std::max(std::abs(*model_.loss), 1e-2);
  if (expected.unsteady_loss > 0.25 * limit) return {};
  if (std::abs(expected.loss - *model_.loss) <= limit) return {};
  return format_text("the file's loss is read as {:.9g}, the generator has {:.9g}", expected.loss,
                     *model_.loss);
}

Judgement Trial::in(const Way& way) {
  const bool narrow = way.param_dtype != DType::kFloat32;
  const std::string key =
      format_text("{} {} {}", way.ranks, way.accumulation, narrow ? "narrow" : "");
  auto found = expected_.find(key);
  if (found == expected_.end()) {
    found = expected_.emplace(key, expect(registry_, model_, way, narrow ? 4e-3 : 1e-6)).first;
  }
  if (!found->second.ok()) {
    const std::string& message = found->second.error().message();
    const bool idle = message.find("nothing to train") != std::string::npos ||  // only one number
                      message.find("reaches no trainable") != std::string::npos;
    return {idle ? Verdict::kUnsteady : Verdict::kRefused, "reference: " + message};
  }
  if (!std::isfinite(found->second->loss)) return {Verdict::kUnsteady, "the loss is no number"};
  if (way.micro_batches() == 1 && !narrow) {
    if (std::string line = other_loss(*found->second); !line.empty())
      return {Verdict::kWrong, line};
  }
  auto trained = train(registry_, model_, way);
  if (!trained.ok()) {
    const std::string& message = trained.error().message();
    const bool absent = way.device && message.find("has no CUDA kernel") != std::string::npos;
    return {absent ? Verdict::kAbsent : Verdict::kRefused, message};
  }
  Judgement judged = judge(*trained, *found->second, narrow);
  if (judged.verdict == Verdict::kWrong && !narrow) {
    const auto jump = jumps(way, *trained, *found->second);
    if (jump.ok() && *jump) judged.verdict = Verdict::kUnsteady;
  }
  return judged;
}

}  // namespace ofsdp::graphs
