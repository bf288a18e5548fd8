#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <numbers>
#include <set>

#include "importer/dialects/training_info/rules_source.h"
#include "importer/export/graph_model.h"
#include "importer/write/model_output.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/compile/compile.h"
#include "runtime/train/setup/model_setup.h"

namespace ofsdp::runtime {
namespace {

// Writes a command's training (loss, trained set, optimizer, rate) as a training_info's algorithm
// graph. SGD with momentum, Adagrad and Adam without eps become ai.onnx.preview.training operators;
// other optimizers become elementwise nodes. Schedules become nodes that read the update count. If
// an option has no such form (label smoothing, a plug-in's loss or optimizer, --clip-grad-norm),
// returns kInput with the flag.

using Names = AlgorithmBuilder::Names;

constexpr int64_t kFloat = 1, kDouble = 11;  // ONNX's element types

int64_t total_of(const Options& options) {
  const ScheduleOptions& s = options.schedule;
  return s.total_steps.value_or(options.run.steps.value_or(0));
}

// Writes a run's loss as nodes, as importer/passes/loss.h defines it.
class LossWriter {
 public:
  LossWriter(const ModelSetup& setup, AlgorithmBuilder& builder)
      : setup_(setup),
        spec_(setup.source->settings().losses[0]),
        traits_(loss_traits(spec_.kind)),
        b_(builder) {}

  // Returns the scalar's name.
  Result<std::string> write() {
    OFSDP_RETURN_IF_ERROR(check());
    if (spec_.kind == LossKind::kOutput) return spec_.output;
    const std::string column = label_column(setup_.graph, spec_);
    if (!column.empty())
      b_.input(column, label_dtype(spec_), setup_.source->settings().rows.at(column));
    const std::string loss = value();
    b_.output(loss, {DType::kFloat32, Shape{}});
    return loss;
  }

 private:
  Status check() const {
    if (spec_.kind == LossKind::kOperator) {
      return input_error("--loss plugin:{}: has no form in standard operators", spec_.output);
    }
    const bool known = spec_.kind == LossKind::kCrossEntropy || spec_.kind == LossKind::kNll ||
                       spec_.kind == LossKind::kMse || spec_.kind == LossKind::kBceWithLogits;
    if (!known && spec_.kind != LossKind::kOutput) {
      return input_error("--loss {}: has no form in standard operators", traits_.name);
    }
    OFSDP_REJECT_IF(!spec_.class_weights.empty() || !spec_.positive_weights.empty(),
                    "make-training: expected neither --class-weights nor --pos-weight");
    if (spec_.label_smoothing == 0) return {};
    return input_error("--label-smoothing: no standard operator has it");
  }

  std::string value() {
    const std::string labels = b_.add1("Reshape", {ordered_labels(), b_.ints("all", {-1})});
    if (traits_.labels == LabelKind::kClasses) return class_loss(traits_.op, labels);
    return spec_.kind == LossKind::kMse ? mean_square(flat(), labels) : logits_loss(flat(), labels);
  }

  // Returns the labels in the prediction's order.
  std::string ordered_labels() {
    if (spec_.outer == 1) return spec_.labels;
    const int64_t places = setup_.source->settings().rows.at(spec_.labels).numel();
    const std::string whole = b_.add1(
        "Reshape", {spec_.labels, b_.ints("places", {-1, spec_.outer, places / spec_.outer})});
    return b_.add1("Transpose", {whole}, {{"perm", std::vector<int64_t>{1, 0, 2}}});
  }

  std::string operand() {
    if (!spec_.logit.empty()) {
      const std::string shape = b_.add1("Shape", {spec_.logit});
      const std::string zeros = b_.add1("ConstantOfShape", {shape});
      return b_.add1("Concat", {zeros, spec_.logit}, {{"axis", int64_t{-1}}});
    }
    return spec_.scores.empty() ? spec_.prediction : spec_.scores;
  }

  std::string flat() { return b_.add1("Reshape", {operand(), b_.ints("all", {-1})}); }

  std::string class_loss(const char* op, const std::string& labels) {
    const std::string rows =
        b_.add1("Reshape", {operand(), b_.ints("rows", {-1, setup_.counts[0].classes})});
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
  const LossTraits& traits_;
  AlgorithmBuilder& b_;
};

Status check_rate(const Options& options) {
  const ScheduleOptions& s = options.schedule;
  if (options.optimizer.clip_grad_norm) {
    return input_error(
        "--clip-grad-norm: the norm of all gradients has no place in an update of each; say it "
        "when training");
  }
  if (s.kind > ScheduleKind::kPolynomial) {
    return input_error(
        "--lr-schedule {}: has no form in an algorithm graph: expected constant, step, linear, "
        "cosine or polynomial",
        name_of(s.kind));
  }
  if (s.kind == ScheduleKind::kStep && s.unit == StepUnit::kEpoch) {
    return input_error("--schedule-unit epoch: a training_info counts updates: expected step");
  }
  const bool ends = s.kind != ScheduleKind::kConstant && s.kind != ScheduleKind::kStep;
  if (!ends || total_of(options) > 0) return {};
  return input_error(
      "--total-steps: expected the updates that --lr-schedule is made for, found "
      "neither it nor --steps");
}

// The learning rate and the update count: initializers T and, without a schedule, R; with one,
// nodes on T with the formulas in runtime/engine/lr_schedule.h. Computed in double and rounded to
// float32 for the update.
class AlgorithmRate {
 public:
  using Make = std::function<std::string(const std::string& exact)>;

  AlgorithmRate(const Options& options, AlgorithmBuilder& builder)
      : options_(options), b_(builder) {}

  // float32
  std::string rate() {
    return once("rate", [&] {
      return is_constant() ? b_.scalar("R", DType::kFloat32, options_.optimizer.lr)
                           : b_.add1("Cast", {exact_rate()}, {{"to", kFloat}}, "R");
    });
  }
  // int64, from 0 and from 1; from 1 also in double
  std::string count() {
    return once("count", [&] { return b_.scalar("T", DType::kInt64, 0); });
  }
  std::string next_count() {
    return once("next count", [&] {
      return b_.add1("Add", {count(), b_.scalar("one", DType::kInt64, 1)}, {}, count() + ".new");
    });
  }
  std::string exact_next_count() {
    return once("exact next count", [&] {
      return b_.add1("Cast", {next_count()}, {{"to", kDouble}});
    });
  }
  // Returns the exact rate or the next count as a float32 scalar, made once.
  std::string of_rate(const std::string& key, const Make& make) {
    return once("of " + key, [&] { return rounded(make(exact_rate())); });
  }
  std::string of_count(const std::string& key, const Make& make) {
    return once("of " + key, [&] { return rounded(make(exact_next_count())); });
  }

  // Assigns the next value to T if a node reads T.
  void finish() {
    if (made_.contains("count")) b_.bind(count(), next_count(), {DType::kInt64, Shape{}});
  }

 private:
  std::string once(const std::string& key, const std::function<std::string()>& make) {
    if (const auto found = made_.find(key); found != made_.end()) return found->second;
    const std::string value = make();
    return made_[key] = value;
  }

  std::string rounded(const std::string& exact) {
    return b_.add1("Cast", {exact}, {{"to", kFloat}});
  }
  std::string number(double value) { return b_.scalar("number", DType::kFloat64, value); }
  bool is_constant() const {
    return options_.schedule.kind == ScheduleKind::kConstant && options_.schedule.warmup_steps == 0;
  }

  std::string exact_count() {
    return once("exact count", [&] { return b_.add1("Cast", {count()}, {{"to", kDouble}}); });
  }

  std::string exact_rate() {
    return once("exact rate", [&] {
      const double lr = options_.optimizer.lr;
      if (is_constant()) return b_.scalar("R", DType::kFloat64, lr);
      return b_.add1("Mul", {number(lr), factor()}, {}, "R");
    });
  }

  std::string factor() {
    const ScheduleOptions& s = options_.schedule;
    const auto warmup = static_cast<double>(s.warmup_steps);
    const std::string at = exact_count();
    std::string after = number(1);
    if (s.kind == ScheduleKind::kStep) {
      const std::string passed = b_.add1("Sub", {at, number(warmup)});
      const std::string stairs =
          b_.add1("Floor", {b_.add1("Div", {passed, number(static_cast<double>(s.step_size))})});
      after = b_.add1("Pow", {number(s.gamma), stairs});
    } else if (s.kind != ScheduleKind::kConstant) {
      const std::string falls = b_.add1("Mul", {number(1 - s.min_lr_ratio), decay(progress())});
      after = b_.add1("Add", {number(s.min_lr_ratio), falls});
    }
    if (s.warmup_steps == 0) return after;
    const std::string steps =
        s.kind == ScheduleKind::kLinear ? at : b_.add1("Add", {at, number(1)});
    const std::string rises = b_.add1("Div", {steps, number(warmup)});
    return b_.add1("Where", {b_.add1("Less", {at, number(warmup)}), rises, after});
  }

  std::string progress() {
    const int64_t warmup = options_.schedule.warmup_steps, span = total_of(options_) - warmup;
    if (span <= 0) return number(1);
    const std::string passed = b_.add1("Sub", {exact_count(), number(static_cast<double>(warmup))});
    const std::string p = b_.add1("Div", {passed, number(static_cast<double>(span))});
    const std::string least = b_.add1("Max", {p, number(0)});  // unused during the warm-up
    return b_.add1("Min", {least, number(1)});
  }

  std::string decay(const std::string& p) {
    const ScheduleOptions& s = options_.schedule;
    if (s.kind == ScheduleKind::kCosine) {
      const std::string turn = b_.add1("Cos", {b_.add1("Mul", {p, number(std::numbers::pi)})});
      return b_.add1("Mul", {b_.add1("Add", {turn, number(1)}), number(0.5)});
    }
    const std::string left = b_.add1("Sub", {number(1), p});
    if (s.kind == ScheduleKind::kLinear) return left;
    return b_.add1("Pow", {left, number(s.power)});
  }

  const Options& options_;
  AlgorithmBuilder& b_;
  std::map<std::string, std::string> made_;  // values by key
};

// Writes one parameter's update, with the formulas in kernels/optimizers, in the same order.
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
        return input_error("--optimizer {}: has no form in an algorithm graph",
                           o_.kind == OptimizerKind::kPlugin ? "plugin:" + o_.plugin
                                                             : std::string(name_of(o_.kind)));
    }
  }

  // Must be called after the last parameter.
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
  // 1 - rate * decay, if the optimizer decays the parameter itself.
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

  // Adds a standard optimizer node: states in, parameter and states out.
  void standard(const char* op, bool next_count, const std::string& gradient, const Names& states,
                Attributes attributes) {
    attributes.set("norm_coefficient", static_cast<float>(decay_));
    Names inputs{rate_.rate(), next_count ? rate_.next_count() : rate_.count(), name_, gradient};
    Names wished{name_ + ".new"};
    inputs.insert(inputs.end(), states.begin(), states.end());
    for (const std::string& s : states) wished.push_back(s + ".new");
    const Names made = b_.add(op, inputs, attributes, wished, AlgorithmBuilder::kDomain);
    bind(name_, made[0]);
    for (size_t i = 0; i < states.size(); ++i) bind(states[i], made[i + 1]);
  }

  void momentum(const std::string& gradient) {
    const std::string v = state("momentum");
    standard("Momentum", false, gradient, {v},
             {{"alpha", static_cast<float>(o_.momentum)},
              {"beta", 1.0f},
              {"mode", std::string(o_.nesterov ? "nesterov" : "standard")}});
  }

  void adagrad(const std::string& gradient) {
    const std::string h = state("sum");
    standard("Adagrad", false, gradient, {h},
             {{"epsilon", static_cast<float>(o_.eps)}, {"decay_factor", 0.0f}});
  }

  // The standard's T is 1 at the first update, as PyTorch's correction needs.
  void standard_adam(const std::string& gradient) {
    const std::string v = state("exp_avg"), h = state("exp_avg_sq");
    standard("Adam", true, gradient, {v, h},
             {{"alpha", static_cast<float>(o_.beta1)},
              {"beta", static_cast<float>(o_.beta2)},
              {"epsilon", 0.0f}});
  }

  // eps is outside the bias correction; the standard's Adam has no such form.
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

// `decays`: one a graph parameter. Returns the result of AlgorithmBuilder::finish.
Result<std::string> training_algorithm(const Options& options, const ModelSetup& setup,
                                       const std::vector<bool>& decays) {
  OFSDP_ASSIGN_OR_RETURN(AlgorithmBuilder builder, AlgorithmBuilder::make(setup.file));
  OFSDP_RETURN_IF_ERROR(check_rate(options));
  OFSDP_ASSIGN_OR_RETURN(const std::string loss, LossWriter(setup, builder).write());
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

Status append(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.flush()) return ok_status();
  return fault("{}: cannot be written: {}", path, std::strerror(errno));
}

Status write_training_info(const Options& options, const ModelSetup& setup) {
  const std::string& path = options.files.output;
  OFSDP_ASSIGN_OR_RETURN(const auto decays, weight_decays(options.optimizer, setup.graph));
  OFSDP_ASSIGN_OR_RETURN(const std::string more, training_algorithm(options, setup, decays));
  OFSDP_ASSIGN_OR_RETURN(ModelOutput output, ModelOutput::begin(setup.file, path));
  OFSDP_RETURN_IF_ERROR(append(output.model_temporary(), more));
  OFSDP_RETURN_IF_ERROR(output.finish());
  OFSDP_RETURN_IF_ERROR(output.commit());
  print_lines(stdout, format_text("wrote {} with its training_info\n", path));
  return {};
}

Status write_graph(const Options& options, const ModelSetup& setup) {
  const std::string& path = options.files.output;
  OFSDP_RETURN_IF_ERROR(check_output_path(path, setup.file));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, setup.source->gradient_graph(setup.batch.batch_size));
  const ValueId loss = graph.terms[0].value;
  // The names of the file stay; a new one that it has gets a number.
  std::map<ValueId, std::string> names;
  for (const Parameter& p : graph.parameters) names[p.value] = p.name;
  for (const ValueId id : graph.inputs) names[id] = graph.value(id).name;
  std::set<std::string> taken;
  for (const auto& [id, name] : names) taken.insert(name);
  const auto add_output = [&](ValueId id, const std::string& wished) {
    std::string& name = names[id] = wished;
    for (int i = 1; !taken.insert(name).second; ++i) name = format_text("{}.{}", wished, i);
    graph.outputs.push_back(id);
  };
  graph.outputs.clear();
  add_output(loss, graph.value(loss).name);
  for (const Parameter& p : graph.parameters) {
    if (p.trained && p.gradient != 0) add_output(p.gradient, p.name + "_grad");
  }
  OFSDP_ASSIGN_OR_RETURN(const std::string bytes, graph_model(graph, setup.file, names));
  OFSDP_RETURN_IF_ERROR(
      write_whole(path, [&](const std::string& temporary) { return append(temporary, bytes); }));
  print_lines(stdout, format_text("wrote {}: the loss '{}' and {} gradients, for batches of {}\n",
                                  path, escaped(names.at(loss)), graph.outputs.size() - 1,
                                  setup.batch.batch_size));
  return {};
}

}  // namespace

Status make_training(const Options& options, const ModelOrigin& origin, const Registry& registry) {
  if (options.files.output.empty()) {
    return input_error("fsdp-run make-training: expected -o OUT.onnx, found none");
  }
  MemoryLedger ledger;
  const auto communicator = make_absent_ranks(1, 1, true);
  OFSDP_ASSIGN_OR_RETURN(const ModelSetup setup,
                         ModelSetup::make(options, origin, registry, *communicator, ledger));
  OFSDP_REJECT_IF(setup.source->settings().losses.size() > 1 || !options.teacher.path.empty(),
                  "fsdp-run make-training: expected one --loss and no --teacher, found {}",
                  options.teacher.path.empty() ? "several" : "--teacher " + options.teacher.path);
  return options.form == "graph" ? write_graph(options, setup)
                                 : write_training_info(options, setup);
}

}  // namespace ofsdp::runtime
