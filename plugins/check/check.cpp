#include "plugins/check/check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "plugins/check/check_graph.h"

namespace ofsdp::plugins {
namespace {

constexpr unsigned kPatience = 60;    // seconds for a sample
constexpr size_t kMostElements = 24;  // of an input that are checked
constexpr double kStep = 1.0 / 64;    // in float32 the best of 2^-4 to 2^-9 for smooth operators
constexpr double kTolerance = 1e-2;   // relative to the largest element of the gradient

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
  made.desc.dtype = dtype_of_number(given.dtype);
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

  // Lines; those that open with "! " are faults.
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

  // sum of seeds times the difference of the outputs
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
    for (size_t n = 0; n < std::min(gradient.size(), kMostElements); ++n) {
      const size_t at = gradient.size() <= kMostElements ? n : random() % gradient.size();
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

// The step of an optimizer with a direction, made of spans that end at `cut` and at the end. `all`:
// parameter, gradient, states. What is wrong, or nothing.
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

// Makes the same updates of 1000 elements whole and in two parts, and looks for writes outside of
// the buffers. Lines that open with "! " are faults.
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

// `work` in a process of its own; what it wrote, and a line about how it ended if not well.
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
