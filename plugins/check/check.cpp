#include "plugins/check/check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "kernels/core/op_def.h"
#include "kernels/cpu/parallel.h"
#include "plugins/check/guarded_buffer.h"
#include "plugins/loading/loader.h"

namespace ofsdp::plugins {
namespace {

// One node with a plug-in's operator, evaluated as it is built: forward and, through `grad`,
// backward, with each tensor between guard pages. The plug-in's kernels run four times - twice
// alike, once over other old bytes, once with two threads - and must give the same bits every time.
//
// Owns the tensors. Collects faults, one line each.

class CheckGraph final : public GradBuilder {
 public:
  // `known`: infer is told these inputs' values.
  CheckGraph(const Registry& registry, const OpDef& op, Attributes attributes,
             std::vector<RefTensor> inputs, const std::vector<bool>& known, size_t num_outputs)
      : registry_(registry), op_(op), attributes_(std::move(attributes)) {
    Values given;
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs_.push_back(add_tensor(format_text("input {}", i), inputs[i], known[i]));
      given.push_back(value(inputs_.back()));
    }
    grads_.resize(inputs.size());
    auto made = evaluate(op_, attributes_, given, num_outputs, true);
    if (!made.ok()) {
      fail(std::move(made).status());
      return;
    }
    for (Value& output : *made) outputs_.push_back(add(std::move(output)));
  }

  const std::vector<std::string>& wrong() const { return wrong_; }
  const std::vector<Ref>& outputs() const { return outputs_; }
  std::vector<double> values(Ref ref) const {
    return to_doubles(value(ref).desc, value(ref).buffer->data());
  }

  // Returns the outputs for other inputs, by one kernel run.
  std::vector<std::vector<double>> outputs_for(const std::vector<RefTensor>& inputs) {
    Values given;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Ref ref = add_tensor("an input", inputs[i], value(inputs_[i]).constant != nullptr);
      given.push_back(value(ref));
    }
    auto made = evaluate(op_, attributes_, given, outputs_.size(), false);
    std::vector<std::vector<double>> found(outputs_.size());
    values_.resize(values_.size() - static_cast<size_t>(std::ranges::count_if(
                                        inputs, [](const auto& t) { return t.desc.present(); })));
    if (!made.ok()) {
      fail(std::move(made).status());
      return found;
    }
    for (size_t i = 0; i < found.size(); ++i) {
      if ((*made)[i].buffer) found[i] = to_doubles((*made)[i].desc, (*made)[i].buffer->data());
    }
    return found;
  }

  void seed(size_t output, const std::vector<double>& gradient) {
    seeds_.resize(std::max(seeds_.size(), output + 1));
    seeds_[output] = add_tensor(format_text("the gradient of output {}", output),
                                {desc(outputs_[output]), gradient}, false);
  }

  void need(std::vector<bool> inputs) { needed_ = std::move(inputs); }
  Ref grad(size_t input) const { return grads_[input]; }

  Attributes attributes() const override { return attributes_; }
  size_t num_inputs() const override { return inputs_.size(); }
  Ref input(size_t i) const override { return inputs_[i]; }

  // An output that the sample does not have, but backward reads.
  Ref output(size_t i) {
    if (i < outputs_.size()) return outputs_[i];
    Values given;
    for (const Ref ref : inputs_) given.push_back(value(ref));
    auto made = evaluate(op_, attributes_, given, i + 1, false);
    if (!made.ok()) {
      fail(std::move(made).status());
      return {};
    }
    return add(std::move((*made)[i]));
  }

  Ref grad_output(size_t i) const override { return i < seeds_.size() ? seeds_[i] : Ref{}; }
  bool needs_grad(size_t i) const override { return i < needed_.size() && needed_[i]; }
  TensorDesc desc(Ref ref) const override { return value(ref).desc; }
  ConstantPtr constant_value(Ref ref) const override { return value(ref).constant; }
  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) {
    Values given;
    for (const Ref ref : inputs) given.push_back(value(ref));
    auto made = evaluate(registry_.get(op), attributes, given, num_outputs, true);
    if (made.ok()) {
      std::vector<Ref> refs;
      for (Value& output : *made) refs.push_back(add(std::move(output)));
      return refs;
    }
    fail(std::move(made).status());
    std::vector<Ref> dummies;
    for (size_t i = 0; i < num_outputs; ++i) {
      dummies.push_back(add_tensor("nothing", {{DType::kFloat32, {}}, {0}}, false));
    }
    return dummies;
  }

  Ref constant(ConstantPtr given) {
    return add_tensor("a constant", {given->desc, to_doubles(given->desc, given->bytes.data())},
                      true);
  }

  void set_grad(size_t input, Ref grad) override { grads_[input] = grad; }
  void fail(Status status) override { wrong_.push_back(status.message()); }

 private:
  static constexpr int kOldBytes = 0x7B,
                       kOtherOldBytes = 0x41;  // outputs hold this before a kernel runs

  // "forward of com.example.RmsNorm", "backward of com.example.RmsNorm".
  static std::string part_of(const OpDef& op) {
    const std::string name = op.full_name(), own = std::string(kBackwardDomain) + ".";
    return name.starts_with(own) ? "backward of " + name.substr(own.size()) : "forward of " + name;
  }

  struct Value {
    TensorDesc desc;
    std::shared_ptr<GuardedBuffer> buffer;
    ConstantPtr constant;
  };
  using Values = std::vector<Value>;

  const Value& value(Ref ref) const { return values_[static_cast<size_t>(ref.id)]; }
  Ref add(Value value) {
    values_.push_back(std::move(value));
    return {static_cast<int>(values_.size()) - 1};
  }

  Ref add_tensor(const std::string& name, const RefTensor& tensor, bool known) {
    if (!tensor.desc.present()) return {};
    Value made{tensor.desc, std::make_shared<GuardedBuffer>(name, tensor.desc.bytes()), nullptr};
    from_doubles(tensor.values, tensor.desc, made.buffer->data());
    made.buffer->protect(true);
    if (known) {
      const std::byte* data = made.buffer->data();
      made.constant = std::make_shared<const Constant>(
          Constant{tensor.desc, std::vector<std::byte>(data, data + tensor.desc.bytes())});
    }
    return add(std::move(made));
  }

  Result<Values> evaluate(const OpDef& op, const Attributes& attributes, const Values& inputs,
                          size_t num_outputs, bool repeated) {
    InferContext context{attributes, {}, {}, std::vector<bool>(num_outputs, true)};
    for (const Value& input : inputs) {
      context.inputs.push_back(input.desc);
      context.constants.push_back(input.constant);
    }
    auto descs = op.infer(context);
    if (!descs.ok()) return std::move(descs).status();
    descs->resize(num_outputs);
    const Problem problem{attributes, context.inputs, *descs, context.constants};
    Values outputs;
    for (size_t i = 0; i < num_outputs; ++i) {
      const std::string name =
          format_text("output {} of {} {}", i, part_of(op), (*descs)[i].text());
      outputs.push_back(
          {(*descs)[i], std::make_shared<GuardedBuffer>(name, (*descs)[i].bytes()), nullptr});
    }
    if (op.view) {
      std::memcpy(outputs[0].buffer->data(), inputs[0].buffer->data(), outputs[0].desc.bytes());
      return outputs;
    }
    OFSDP_RETURN_IF_ERROR(run(op, problem, inputs, outputs, 1, kOldBytes));
    if (repeated && of_plugin(op)) OFSDP_RETURN_IF_ERROR(repeat(op, problem, inputs, outputs));
    for (Value& output : outputs) output.buffer->protect(true);
    return outputs;
  }

  Status run(const OpDef& op, const Problem& given, const Values& inputs, Values& outputs,
             int threads, int old_bytes) {
    set_pool_threads(threads);
    Problem problem = given;
    problem.threads = threads;
    OFSDP_ASSIGN_OR_RETURN(const auto kernel, create_kernel(op, problem));
    GuardedBuffer scratch("the scratch of " + part_of(op), kernel->workspace_bytes());
    std::vector<TensorView> in, out;
    for (const Value& v : inputs) in.push_back({v.buffer ? v.buffer->data() : nullptr, v.desc});
    for (const Value& v : outputs) {
      v.buffer->fill(old_bytes);
      out.push_back({v.buffer->data(), v.desc});
    }
    const StepContext step{.seed = 0, .step = 0, .sample_index = {}};
    OFSDP_RETURN_IF_ERROR(kernel->run({in, out, scratch.data(), &step}));
    for (const Value& v : outputs) {
      if (!v.buffer->surrounded()) return fault("{} writes outside of its bytes", v.buffer->name());
    }
    if (!scratch.surrounded()) return fault("it writes outside of {}", scratch.name());
    return {};
  }

  Status repeat(const OpDef& op, const Problem& problem, const Values& inputs,
                const Values& outputs) {
    struct Trial {
      int threads, old_bytes;
      const char* what;
    };
    const Trial trials[] = {{1, kOldBytes, "two runs differ in"},
                            {1, kOtherOldBytes, "forward or backward leaves elements unwritten of"},
                            {2, kOldBytes, "one and two threads differ in"}};
    for (const Trial& trial : trials) {
      Values again;
      for (const Value& v : outputs) {
        again.push_back(
            {v.desc, std::make_shared<GuardedBuffer>(v.buffer->name(), v.buffer->size()), nullptr});
      }
      OFSDP_RETURN_IF_ERROR(run(op, problem, inputs, again, trial.threads, trial.old_bytes));
      for (size_t i = 0; i < outputs.size(); ++i) {
        const bool same = std::memcmp(again[i].buffer->data(), outputs[i].buffer->data(),
                                      outputs[i].desc.bytes()) == 0;
        if (!same) return fault("{} {}", trial.what, outputs[i].buffer->name());
      }
    }
    return {};
  }

  const Registry& registry_;
  const OpDef& op_;
  Attributes attributes_;
  Values values_ = {{}};  // value 0 is none
  std::vector<Ref> inputs_, outputs_, seeds_, grads_;
  std::vector<bool> needed_;
  std::vector<std::string> wrong_;
};

constexpr unsigned kPatience = 60;   // seconds for a sample
constexpr size_t kMaxElements = 24;  // checked in an input
constexpr double kStep = 1.0 / 64;   // in float32 the best from 2^-4 to 2^-9 for smooth operators
constexpr double kTolerance = 1e-2;  // relative to the gradient's largest element

// normal(0,1), as float32 has them.
std::vector<double> normals(size_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<float>(normal(random));
  return values;
}

struct Sample {
  std::string name;
  Attributes attributes;
  std::vector<RefTensor> inputs;
  std::vector<bool> known;
  size_t num_outputs = 1;
  double tolerance = kTolerance;
};

RefTensor input_of(const ofsdp_tensor& given, std::mt19937& random) {
  RefTensor made;
  made.desc.dtype = dtype_from_onnx_number(given.dtype);
  if (!made.desc.present()) return made;
  made.desc.shape = Shape(std::vector<int64_t>(given.shape, given.shape + given.rank));
  const auto count = static_cast<size_t>(made.desc.numel());
  if (given.data != nullptr) {
    made.values = to_doubles(made.desc, static_cast<const std::byte*>(given.data));
  } else if (is_floating(made.desc.dtype)) {
    made.values = normals(count, random);
  } else {
    made.values.assign(count, 0);
  }
  return made;
}

Sample sample_of(const PluginOperator& op, const ofsdp_sample& given) {
  Sample made;
  std::mt19937 random(7);
  made.name = given.name == nullptr ? "" : given.name;
  for (size_t i = 0; i < given.num_attributes; ++i) {
    const ofsdp_attribute attribute = whole(given.attributes[i]);
    made.attributes.set(attribute.name, attribute_of_plugin(attribute));
  }
  for (size_t i = 0; i < given.num_inputs; ++i) {
    made.inputs.push_back(input_of(whole(given.inputs[i]), random));
    const uint32_t flags = i < op.inputs.size() ? op.inputs[i].flags : 0;
    made.known.push_back((flags & OFSDP_KNOWN) != 0);
  }
  made.num_outputs = std::max<size_t>(given.num_outputs, 1);
  if (given.tolerance > 0) made.tolerance = given.tolerance;
  return made;
}

class SampleCheck {
 public:
  SampleCheck(const LoadedPlugins& plugins, const PluginOperator& op, const Sample& sample)
      : op_(op),
        sample_(sample),
        def_(*plugins.registry.find(op.domain, op.name)),
        graph_(plugins.registry, def_, sample.attributes, sample.inputs, sample.known,
               sample.num_outputs) {}

  // Returns lines; a line that begins with "! " is a fault.
  std::vector<std::string> run() {
    if (graph_.wrong().empty()) check_backward();
    for (const std::string& message : graph_.wrong()) lines_.push_back("! " + message);
    return lines_;
  }

 private:
  bool differentiable(size_t i) const {
    const bool none = i >= op_.inputs.size() || (op_.inputs[i].flags & OFSDP_NO_GRADIENT) != 0;
    return !none && !sample_.known[i] && is_floating(sample_.inputs[i].desc.dtype);
  }

  void check_backward() {
    for (const Ref ref : graph_.outputs()) lines_.push_back("forward " + graph_.desc(ref).text());
    if (def_.grad == nullptr) return lines_.push_back("no backward: nothing trains through it");
    std::vector<bool> needed;
    for (size_t i = 0; i < sample_.inputs.size(); ++i) needed.push_back(differentiable(i));
    seed();
    graph_.need(needed);
    def_.grad(graph_);
    for (size_t i = 0; i < needed.size() && graph_.wrong().empty(); ++i) {
      if (needed[i]) compare(i);
    }
  }

  void seed() {
    std::mt19937 random(11);
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const TensorDesc& desc = graph_.desc(graph_.outputs()[i]);
      seeds_.push_back(normals(static_cast<size_t>(desc.numel()), random));
      const bool none = (op_.outputs[i].flags & OFSDP_NO_GRADIENT) != 0;
      if (none || !is_floating(desc.dtype)) seeds_.back().clear();
      if (!seeds_.back().empty()) graph_.seed(i, seeds_.back());
    }
  }

  // sum over seeds times output differences
  double slope(std::vector<RefTensor>& inputs, size_t i, size_t at) {
    double& x = inputs[i].values[at];
    const double original = x;
    x = original + kStep;
    const auto above = graph_.outputs_for(inputs);
    x = original - kStep;
    const auto below = graph_.outputs_for(inputs);
    x = original;
    double sum = 0;
    for (size_t k = 0; k < seeds_.size(); ++k) {
      for (size_t n = 0; n < seeds_[k].size(); ++n) {
        sum += seeds_[k][n] * (above[k][n] - below[k][n]);
      }
    }
    return sum / (2 * kStep);
  }

  void compare(size_t i) {
    if (!graph_.grad(i)) return graph_.fail(fault("backward gives no gradient of input {}", i));
    const std::vector<double> gradient = graph_.values(graph_.grad(i));
    double largest = 1e-3, worst = 0;
    for (const double g : gradient) largest = std::max(largest, std::abs(g));
    std::vector<RefTensor> inputs = sample_.inputs;
    std::mt19937 random(13);
    for (size_t n = 0; n < std::min(gradient.size(), kMaxElements); ++n) {
      const size_t at = gradient.size() <= kMaxElements ? n : random() % gradient.size();
      const double expected = slope(inputs, i, at);
      const double off = std::abs(expected - gradient[at]) / largest;
      worst = std::max(worst, std::isnan(off) ? INFINITY : off);
      if (off <= sample_.tolerance) continue;
      return graph_.fail(
          fault("gradient of input {} ('{}') element {}: finite difference {:.6g}, "
                "backward {:.6g}",
                i, op_.inputs[i].name, at, expected, gradient[at]));
    }
    lines_.push_back(format_text("gradient of '{}' within {:.1e}", op_.inputs[i].name, worst));
  }

  const PluginOperator& op_;
  const Sample& sample_;
  const OpDef& def_;
  CheckGraph graph_;
  std::vector<std::vector<double>> seeds_;
  std::vector<std::string> lines_;
};

float* floats(const std::shared_ptr<GuardedBuffer>& buffer) {
  return reinterpret_cast<float*>(buffer->data());
}

// Takes an optimizer step with a direction, in two spans divided at `cut`. `all`: parameter,
// gradient, states. Returns the fault, or nothing.
std::string take_direction(const OptimizerDef& def,
                           const std::vector<std::shared_ptr<GuardedBuffer>>& all, int64_t cut,
                           int64_t step) {
  const auto count = static_cast<int64_t>(all[0]->size() / sizeof(float));
  GuardedBuffer buffer("direction", all[0]->size());
  auto* direction = reinterpret_cast<float*>(buffer.data());
  for (int64_t at = 0; at < count;) {
    const int64_t stop = at < cut ? cut : count;
    std::vector<float*> states;
    for (size_t k = 2; k < all.size(); ++k) states.push_back(floats(all[k]) + at);
    def.direction({}, {floats(all[0]) + at, nullptr, states.data(), stop - at, 0.01, 0.1, step},
                  direction + at);
    at = stop;
  }
  if (!buffer.surrounded()) return "it writes outside of " + buffer.name();
  double of_p = 0, of_d = 0;
  for (int64_t i = 0; i < count; ++i) {
    of_p += static_cast<double>(floats(all[0])[i]) * floats(all[0])[i];
    of_d += static_cast<double>(direction[i]) * direction[i];
  }
  for (const auto& [p, d] : {std::pair{of_p, of_d}, {0.0, of_d}, {of_p, 0.0}, {0.0, 0.0}}) {
    const double length = def.step_length({}, {std::sqrt(p), std::sqrt(d), count, 0.01, step});
    if (!std::isfinite(length)) {
      return format_text("step_length is {} for norms {} and {}", length, std::sqrt(p),
                         std::sqrt(d));
    }
  }
  const double length = def.step_length({}, {std::sqrt(of_p), std::sqrt(of_d), count, 0.01, step});
  for (int64_t i = 0; i < count; ++i) {
    floats(all[0])[i] -= static_cast<float>(length) * direction[i];
  }
  return "";
}

// Updates 1000 elements whole and in two parts, and looks for writes outside the buffers. Lines
// that open with "! " are faults.
std::vector<std::string> check_optimizer(const OptimizerDef& def) {
  constexpr int64_t kCount = 1000, kCut = 377;
  std::mt19937 random(5);
  const std::vector<double> start = normals(kCount, random), slope = normals(kCount, random);
  const size_t states = def.state_names({}).size();
  std::vector<std::shared_ptr<GuardedBuffer>> results;
  for (const bool cut : {false, true, false}) {
    std::vector<std::shared_ptr<GuardedBuffer>> all;
    for (size_t k = 0; k < states + 2; ++k) {
      const std::string name = k == 0 ? "param" : k == 1 ? "grad" : format_text("state {}", k - 2);
      all.push_back(std::make_shared<GuardedBuffer>(name, kCount * sizeof(float)));
      all.back()->fill(0);
    }
    const TensorDesc desc{DType::kFloat32, {kCount}};
    from_doubles(start, desc, all[0]->data());
    from_doubles(slope, desc, all[1]->data());
    all[1]->protect(true);
    for (int64_t step = 1; step <= 3; ++step) {
      for (int64_t at = 0; at < kCount;) {
        const int64_t stop = cut && at == 0 ? kCut : kCount;
        std::vector<float*> parts;
        for (auto& b : all) parts.push_back(reinterpret_cast<float*>(b->data()) + at);
        def.update({}, {parts[0], parts[1], parts.data() + 2, stop - at, 0.01, 0.1, step});
        at = stop;
      }
      if (def.direction == nullptr) continue;
      const std::string wrong = take_direction(def, all, cut ? kCut : kCount, step);
      if (!wrong.empty()) return {"! " + wrong};
    }
    for (const auto& buffer : all) {
      if (!buffer->surrounded()) return {"! it writes outside of " + buffer->name()};
    }
    results.push_back(all[0]);
  }
  const auto same = [&](size_t i) {
    return std::memcmp(results[0]->data(), results[i]->data(), results[0]->size()) == 0;
  };
  if (!same(2)) return {"! two runs differ"};
  if (!same(1)) return {"! the update of a span depends on where it is cut"};
  return {"update of a shard, whole and cut"};
}

// Runs `work` in a separate process; returns the output, and a line about the end if that was not
// normal.
template <typename F>
std::string apart(const F& work) {
  int ends[2];
  if (pipe(ends) != 0) return "! no pipe\n";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    alarm(kPatience);
    catch_guard_faults(ends[1]);
    std::string text;
    for (const std::string& line : work()) text += line + "\n";
    const bool whole =
        write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(whole ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; child > 0 && (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return "! no process\n";
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    return text + format_text("! it did not end within {} s\n", kPatience);
  }
  if (WIFSIGNALED(status)) text += format_text("! it ended by signal {}\n", WTERMSIG(status));
  if (text.empty()) text = "! it ended without a word\n";
  return text;
}

}  // namespace

PluginReport check_plugins(const LoadedPlugins& plugins) {
  PluginReport report;
  const auto add = [&](const std::string& subject, const std::string& lines) {
    for (size_t at = 0; at < lines.size();) {
      const size_t end = lines.find('\n', at);
      const std::string line = lines.substr(at, end - at);
      const bool fault = line.starts_with("! ");
      report.faults += fault ? 1 : 0;
      report.text += format_text("{:<6} {}: {}\n", fault ? "WRONG" : "ok", subject,
                                 fault ? line.substr(2) : line);
      at = end == std::string::npos ? lines.size() : end + 1;
    }
  };
  for (const PluginOperatorPtr& op : plugins.operators) {
    if (op->def.num_samples == 0) add(op->full_name(), "! it has no sample to be checked with\n");
    for (size_t i = 0; i < op->def.num_samples; ++i) {
      const Sample sample = sample_of(*op, whole(op->def.samples[i]));
      add(format_text("{} / {}", op->full_name(), sample.name),
          apart([&] { return SampleCheck(plugins, *op, sample).run(); }));
    }
  }
  for (const OptimizerDef& def : plugins.optimizers) {
    if (!def.name.starts_with("plugin:")) continue;
    add("--optimizer " + def.name, apart([&] { return check_optimizer(def); }));
  }
  return report;
}

}  // namespace ofsdp::plugins
