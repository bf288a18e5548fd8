#include "runtime/commands/training_algorithm.h"

#include <algorithm>
#include <cmath>

#include "runtime/commands/algorithm_loss.h"
#include "runtime/commands/algorithm_rate.h"

namespace ofsdp::runtime {
namespace {

using Names = AlgorithmBuilder::Names;

// The update of one parameter; the formulas are those of kernels/optimizers, in their order.
class UpdateWriter {
 public:
  UpdateWriter(const Options& options, AlgorithmBuilder& builder)
      : o_(options.optimizer), b_(builder), rate_(options, builder) {}

  Status write(const Parameter& p, const TensorDesc& desc, const std::string& gradient,
               bool decay) {
    name_ = p.name;
    desc_ = desc;
    decay_ = decay ? o_.weight_decay : 0;
    switch (o_.kind) {
      case OptimizerKind::kSgd:
        o_.momentum == 0 ? sgd(gradient) : momentum(gradient);
        return {};
      case OptimizerKind::kAdagrad:
        adagrad(gradient);
        return {};
      case OptimizerKind::kAdam:
        o_.eps == 0 ? standard_adam(gradient) : adam(gradient, false);
        return {};
      case OptimizerKind::kAdamW:
        adam(gradient, true);
        return {};
      case OptimizerKind::kAdadelta:
        adadelta(gradient);
        return {};
      case OptimizerKind::kLion:
        lion(gradient);
        return {};
      case OptimizerKind::kRmsProp:
        rmsprop(gradient);
        return {};
      default:
        return input_error("--optimizer: a plug-in's has no form in an algorithm graph");
    }
  }

  // Behind the last parameter.
  void finish() { rate_.finish(); }

 private:
  std::string number(double value) {
    const auto [it, fresh] = numbers_.try_emplace(static_cast<float>(value), "");
    if (fresh) it->second = b_.scalar("number", DType::kFloat32, value);
    return it->second;
  }
  std::string add(const std::string& a, const std::string& b) { return b_.add1("Add", {a, b}); }
  std::string sub(const std::string& a, const std::string& b) { return b_.add1("Sub", {a, b}); }
  std::string mul(const std::string& a, const std::string& b) { return b_.add1("Mul", {a, b}); }
  std::string div(const std::string& a, const std::string& b) { return b_.add1("Div", {a, b}); }
  std::string sqrt(const std::string& a) { return b_.add1("Sqrt", {a}); }

  std::string state(const char* kind) { return b_.zeros(name_ + "." + kind, desc_.shape); }
  void bind(const std::string& initializer, const std::string& value) {
    b_.bind(initializer, value, desc_);
  }

  std::string decayed(const std::string& gradient) {
    return decay_ == 0 ? gradient : add(gradient, mul(number(decay_), name_));
  }
  // 1 - rate * decay, for those that decay the parameter itself.
  std::string shrunk() {
    if (decay_ == 0) return name_;
    return mul(name_, rate_.of_rate(format_text("keep {}", decay_), [&](const std::string& rate) {
      const std::string taken =
          b_.add1("Mul", {rate, b_.scalar("weight_decay", DType::kFloat64, decay_)});
      return b_.add1("Sub", {b_.scalar("one", DType::kFloat64, 1), taken});
    }));
  }

  void sgd(const std::string& gradient) {
    bind(name_, sub(name_, mul(rate_.rate(), decayed(gradient))));
  }

  void momentum(const std::string& gradient) {
    const std::string v = state("momentum");
    const auto made = b_.add("Momentum", {rate_.rate(), rate_.count(), name_, gradient, v},
                             {{"alpha", static_cast<float>(o_.momentum)},
                              {"beta", 1.0f},
                              {"mode", std::string(o_.nesterov ? "nesterov" : "standard")},
                              {"norm_coefficient", static_cast<float>(decay_)}},
                             {name_ + ".new", v + ".new"}, AlgorithmBuilder::kDomain);
    bind(name_, made[0]);
    bind(v, made[1]);
  }

  void adagrad(const std::string& gradient) {
    const std::string h = state("sum");
    const auto made = b_.add("Adagrad", {rate_.rate(), rate_.count(), name_, gradient, h},
                             {{"epsilon", static_cast<float>(o_.eps)},
                              {"decay_factor", 0.0f},
                              {"norm_coefficient", static_cast<float>(decay_)}},
                             {name_ + ".new", h + ".new"}, AlgorithmBuilder::kDomain);
    bind(name_, made[0]);
    bind(h, made[1]);
  }

  // The standard's T is 1 at the first update for PyTorch's correction.
  void standard_adam(const std::string& gradient) {
    const std::string v = state("exp_avg"), h = state("exp_avg_sq");
    const auto made = b_.add("Adam", {rate_.rate(), rate_.next_count(), name_, gradient, v, h},
                             {{"alpha", static_cast<float>(o_.beta1)},
                              {"beta", static_cast<float>(o_.beta2)},
                              {"epsilon", 0.0f},
                              {"norm_coefficient", static_cast<float>(decay_)}},
                             {name_ + ".new", v + ".new", h + ".new"}, AlgorithmBuilder::kDomain);
    bind(name_, made[0]);
    bind(v, made[1]);
    bind(h, made[2]);
  }

  // eps stands outside of the bias correction, which the standard's Adam cannot say.
  void adam(const std::string& gradient, bool decoupled) {
    const std::string m = state("exp_avg"), v = state("exp_avg_sq");
    const std::string p = decoupled ? shrunk() : name_;
    const std::string g = decoupled ? gradient : decayed(gradient);
    const std::string new_m = add(m, mul(number(1 - o_.beta1), sub(g, m)));
    const std::string new_v = add(mul(v, number(o_.beta2)), mul(mul(number(1 - o_.beta2), g), g));
    const std::string root = div(sqrt(new_v), rate_.of_count("root", [&](const std::string& t) {
      return b_.add1("Sqrt", {correction(t, o_.beta2)});
    }));
    const std::string step = rate_.of_rate("step", [&](const std::string& rate) {
      return b_.add1("Div", {rate, correction(rate_.exact_next_count(), o_.beta1)});
    });
    bind(name_, sub(p, div(mul(step, new_m), add(root, number(o_.eps)))));
    bind(m, new_m);
    bind(v, new_v);
  }

  // 1 - beta^t, in double.
  std::string correction(const std::string& t, double beta) {
    const std::string power = b_.add1("Pow", {b_.scalar("beta", DType::kFloat64, beta), t});
    return b_.add1("Sub", {b_.scalar("one", DType::kFloat64, 1), power});
  }

  void adadelta(const std::string& gradient) {
    const std::string s = state("square_avg"), a = state("acc_delta");
    const std::string g = decayed(gradient), rho = number(o_.rho), rest = number(1 - o_.rho);
    const std::string eps = number(o_.eps);
    const std::string new_s = add(mul(s, rho), mul(mul(rest, g), g));
    const std::string d = mul(div(sqrt(add(a, eps)), sqrt(add(new_s, eps))), g);
    bind(s, new_s);
    bind(a, add(mul(a, rho), mul(mul(rest, d), d)));
    bind(name_, sub(name_, mul(rate_.rate(), d)));
  }

  void rmsprop(const std::string& gradient) {
    const std::string s = state("square_avg"), g = decayed(gradient);
    const std::string new_s = add(mul(s, number(o_.rho)), mul(mul(number(1 - o_.rho), g), g));
    std::string d = div(g, add(sqrt(new_s), number(o_.eps)));
    bind(s, new_s);
    if (o_.momentum != 0) {
      const std::string b = state("momentum_buffer");
      d = add(mul(b, number(o_.momentum)), d);
      bind(b, d);
    }
    bind(name_, sub(name_, mul(rate_.rate(), d)));
  }

  void lion(const std::string& gradient) {
    const std::string m = state("exp_avg");
    const auto mix = [&](double beta) {
      return add(mul(number(beta), m), mul(number(1 - beta), gradient));
    };
    const std::string step = mul(rate_.rate(), b_.add1("Sign", {mix(o_.beta1)}));
    bind(name_, sub(shrunk(), step));
    bind(m, mix(o_.beta2));
  }

  const OptimizerOptions& o_;
  AlgorithmBuilder& b_;
  AlgorithmRate rate_;
  std::map<float, std::string> numbers_;
  std::string name_;
  TensorDesc desc_;
  double decay_ = 0;
};

}  // namespace

Result<std::string> training_algorithm(const Options& options, const ModelSetup& setup,
                                       const std::vector<bool>& decays) {
  OFSDP_ASSIGN_OR_RETURN(AlgorithmBuilder builder, AlgorithmBuilder::make(setup.file));
  OFSDP_RETURN_IF_ERROR(check_rate(options));
  OFSDP_ASSIGN_OR_RETURN(const std::string loss, write_loss(setup, builder));
  Names xs, wished;
  for (const Parameter& p : setup.graph.parameters) {
    if (p.trained) xs.push_back(p.name);
    if (p.trained) wished.push_back(p.name + "_grad");
  }
  Names inputs = xs;
  const Names& zs = builder.model_inputs();
  inputs.insert(inputs.end(), zs.begin(), zs.end());
  const Names gradients = builder.add("Gradient", inputs, {{"xs", xs}, {"zs", zs}, {"y", loss}},
                                      wished, AlgorithmBuilder::kDomain);
  UpdateWriter updates(options, builder);
  size_t at = 0;
  for (size_t i = 0; i < setup.graph.parameters.size(); ++i) {
    const Parameter& p = setup.graph.parameters[i];
    if (!p.trained) continue;
    const TensorDesc& desc = setup.graph.value(p.value).desc;
    OFSDP_RETURN_IF_ERROR(updates.write(p, desc, gradients[at++], decays[i]));
  }
  updates.finish();
  return builder.finish();
}

}  // namespace ofsdp::runtime
