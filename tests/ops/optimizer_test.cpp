// Optimizers: PyTorch's recorded trajectories, the reference in double, and bits that do not depend
// on how a shard is cut into spans.
#include "kernels/core/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/support/namespaces.h"
#include "tests/support/op_values.h"

namespace ofsdp {
namespace optimizer_test {

struct Trial {
  const char* optimizer;
  OptimizerSettings settings;
  double lr;
  std::vector<float> torch = {};  // parameters after 20 updates by torch.optim (2.x, foreach=False)
};

OptimizerSettings settings(double weight_decay, double momentum = 0, bool nesterov = false) {
  OptimizerSettings made;
  made.weight_decay = weight_decay;
  made.momentum = momentum;
  made.nesterov = nesterov;
  return made;
}

OptimizerSettings with_eps(OptimizerSettings made, double eps) {
  made.eps = eps;
  return made;
}

OptimizerSettings with_rho(OptimizerSettings made, double rho) {
  made.rho = rho;
  return made;
}

OptimizerSettings with_betas(OptimizerSettings made, double beta1, double beta2) {
  made.beta1 = beta1;
  made.beta2 = beta2;
  return made;
}

std::vector<Trial> trials() {
  return {{"sgd",
           settings(0),
           0.1,
           {0.188606441f, -0.526019752f, 0.68105644f, 0.0887183771f, -0.395908386f}},
          {"sgd",
           settings(0.01, 0.9),
           0.1,
           {-0.2368121f, 0.244959772f, -0.21299383f, 0.0676411465f, 0.0575107597f}},
          {"sgd",
           settings(0, 0.9, true),
           0.05,
           {-0.175085247f, 0.313399166f, -0.570621848f, 0.0310862754f, 0.0779972151f}},
          {"adam",
           settings(0.1),
           0.01,
           {0.469305187f, -1.12604773f, 1.82820749f, 0.0962252915f, -0.666102231f}},
          {"adamw",
           settings(0.1),
           0.01,
           {0.469941646f, -1.11902392f, 1.79906344f, 0.0965039358f, -0.666267514f}},
          {"adamw",
           with_eps(with_betas(settings(0.01), 0.4, 0.9), 1e-6),
           0.02,
           {0.413329154f, -1.02998173f, 1.67672598f, 0.0966938511f, -0.621305048f}},
          {"adamw_transformers",  // from the formulas in double
           with_eps(settings(0.1), 1e-6),
           0.01,
           {0.469962467f, -1.11913108f, 1.79922464f, 0.0965286639f, -0.666336856f}},
          {"adadelta",
           with_rho(with_eps(settings(0.01), 1e-6), 0.9),
           1.0,
           {0.48667714f, -1.20609772f, 1.94176936f, 0.122754686f, -0.724823833f}},
          {"adagrad",
           with_eps(settings(0.02), 1e-10),
           0.05,
           {0.438944817f, -1.04819202f, 1.67576504f, 0.090593338f, -0.627372503f}},
          {"rmsprop",
           with_rho(settings(0.01), 0.99),
           0.01,
           {0.379649401f, -0.875743389f, 1.37711346f, 0.0669623837f, -0.530581534f}},
          {"rmsprop",
           with_rho(settings(0.1, 0.9), 0.99),
           0.005,
           {0.101844862f, -0.012104515f, 0.0419989005f, -0.0719620064f, 0.00311391219f}},
          {"nadam",
           settings(0.1),
           0.01,
           {0.455344617f, -1.14172542f, 1.85182893f, 0.109541371f, -0.681123137f}},
          {"radam",
           settings(0.05),
           0.02,
           {0.52301991f, -1.21433234f, 1.88646638f, 0.0820739493f, -0.721024632f}},
          {"radam",
           with_betas(settings(0.05), 0.4, 0.9),
           0.02,
           {0.44779405f, -1.11218262f, 1.76505864f, 0.0944887176f, -0.661114633f}},
          {"lion",  // from the paper's own implementation: torch.optim has none
           with_betas(settings(0.1), 0.9, 0.99),
           0.01,
           {0.470075697f, -1.08633065f, 1.76226699f, 0.10278184f, -0.655679107f}}};
}

std::string label(const Trial& trial) {
  return std::string(trial.optimizer) + " weight_decay " +
         std::to_string(trial.settings.weight_decay) + " momentum " +
         std::to_string(trial.settings.momentum);
}

// An optimizer's parameters and states; `offset` moves all starts off their alignment.
template <typename T>
class Shard {
 public:
  Shard(const Trial& trial, std::vector<T> param, size_t offset = 0)
      : trial_(trial), count_(param.size()), offset_(offset), param_(offset, T(7)) {
    def_ = find_optimizer(trial.optimizer);
    param_.insert(param_.end(), param.begin(), param.end());
    states_.resize(def_->states(trial.settings).size(), std::vector<T>(offset + count_, T(0)));
  }

  // One update, done in spans that end at each cut and at the end.
  void step(const std::vector<T>& grad, int64_t number, const std::vector<size_t>& cuts = {}) {
    size_t begin = 0;
    std::vector<size_t> ends = cuts;
    ends.push_back(count_);
    for (size_t end : ends) {
      std::vector<T*> state;
      for (std::vector<T>& values : states_) state.push_back(values.data() + offset_ + begin);
      update({param_.data() + offset_ + begin, grad.data() + begin, state.data(),
              static_cast<int64_t>(end - begin), trial_.lr, trial_.settings.weight_decay, number});
      begin = end;
    }
  }

  std::vector<T> param() const {
    return {param_.begin() + static_cast<long>(offset_), param_.end()};
  }

 private:
  void update(const OptimizerSpan<float>& span) { def_->update(trial_.settings, span); }
  void update(const OptimizerSpan<double>& span) { def_->reference(trial_.settings, span); }

  Trial trial_;
  const OptimizerDef* def_;
  size_t count_, offset_;
  std::vector<T> param_;
  std::vector<std::vector<T>> states_;
};

TEST(Optimizer, FollowsTorch) {
  for (const Trial& trial : trials()) {
    Shard<float> shard(trial, {0.5f, -1.25f, 2.0f, 0.125f, -0.75f});
    for (int t = 0; t < 20; ++t) {
      std::vector<float> grad = shard.param();
      for (int i = 0; i < 5; ++i) {
        float& g = grad[static_cast<size_t>(i)];
        g = static_cast<float>((i * 7 + t * 3) % 11 - 5) / 4.0f + 0.5f * g;
      }
      shard.step(grad, t + 1);
    }
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(shard.param()[i], trial.torch[i],
                  4e-7f * std::max(1.0f, std::abs(trial.torch[i])))
          << label(trial) << " element " << i;
    }
  }
}

TEST(Optimizer, FollowsItsReferenceInDouble) {
  constexpr size_t kCount = 1237;
  for (const Trial& trial : trials()) {
    const std::vector<float> start = testing::normal_floats(kCount, 1);
    Shard<float> shard(trial, start, 3);
    Shard<double> reference(trial, std::vector<double>(start.begin(), start.end()));
    for (int t = 1; t <= 50; ++t) {
      const std::vector<float> grad =
          testing::normal_floats(kCount, 100 + static_cast<uint32_t>(t));
      shard.step(grad, t);
      reference.step(std::vector<double>(grad.begin(), grad.end()), t);
    }
    double moved = 0;
    for (size_t i = 0; i < kCount; ++i) {
      const double expected = reference.param()[i];
      moved = std::max(moved, std::abs(expected - static_cast<double>(start[i])));
      ASSERT_NEAR(shard.param()[i], expected, 2e-5 * std::max(1.0, std::abs(expected)))
          << label(trial) << " element " << i;
    }
    EXPECT_GT(moved, 1e-2) << label(trial);
  }
}

TEST(Optimizer, BitsDoNotDependOnTheCut) {
  constexpr size_t kCount = 301;
  for (const Trial& trial : trials()) {
    const std::vector<float> start = testing::normal_floats(kCount, 2);
    Shard<float> whole(trial, start), cut(trial, start, 5);
    for (int t = 1; t <= 10; ++t) {
      const std::vector<float> grad =
          testing::normal_floats(kCount, 200 + static_cast<uint32_t>(t));
      whole.step(grad, t);
      cut.step(grad, t, {1, 18, 18, 37, 150, 299});
    }
    const std::vector<float> a = whole.param(), b = cut.param();
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(0, std::memcmp(&a[i], &b[i], sizeof(float))) << label(trial) << " element " << i;
    }
  }
}

// A whole parameter under LAMB, as the program composes it: states, steps in spans, one ratio.
class LambParameter {
 public:
  LambParameter(std::vector<float> start, OptimizerSettings given, double lr)
      : settings_(given), lr_(lr), param_(std::move(start)), states_(2, Values(param_.size())) {}

  void step(const std::vector<float>& grad, int64_t number, const std::vector<size_t>& cuts = {}) {
    std::vector<float> direction(param_.size());
    std::vector<size_t> ends = cuts;
    ends.push_back(param_.size());
    size_t begin = 0;
    for (const size_t end : ends) {
      float* state[] = {states_[0].data() + begin, states_[1].data() + begin};
      const OptimizerSpan<float> span{param_.data() + begin,
                                      grad.data() + begin,
                                      state,
                                      static_cast<int64_t>(end - begin),
                                      lr_,
                                      settings_.weight_decay,
                                      number};
      def_->update(settings_, span);
      def_->direction(settings_, span, direction.data() + begin);
      begin = end;
    }
    const double p = norm(param_), d = norm(direction);
    const auto rate = static_cast<float>(lr_ * (p == 0 || d == 0 ? 1 : p / d));
    for (size_t i = 0; i < param_.size(); ++i) param_[i] -= rate * direction[i];
  }
  const std::vector<float>& param() const { return param_; }

 private:
  using Values = std::vector<float>;
  static double norm(const Values& values) {
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value) * value;
    return std::sqrt(sum);
  }

  const OptimizerDef* def_ = find_optimizer("lamb");
  OptimizerSettings settings_;
  double lr_;
  Values param_;
  std::vector<Values> states_;
};

OptimizerSettings lamb_settings(double weight_decay) {
  return with_eps(settings(weight_decay), 1e-6);
}

// The same 20 updates as for the others, written in PyTorch's float32 operations.
TEST(Lamb, FollowsTorch) {
  LambParameter shard({0.5f, -1.25f, 2.0f, 0.125f, -0.75f}, lamb_settings(0.1), 0.01);
  const float torch[] = {0.442102432f, -1.03186548f, 1.66126275f, 0.0842500329f, -0.613191426f};
  for (int t = 0; t < 20; ++t) {
    std::vector<float> grad = shard.param();
    for (int i = 0; i < 5; ++i) {
      float& g = grad[static_cast<size_t>(i)];
      g = static_cast<float>((i * 7 + t * 3) % 11 - 5) / 4.0f + 0.5f * g;
    }
    shard.step(grad, t + 1);
  }
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(shard.param()[i], torch[i], 1e-6f) << i;
}

TEST(Lamb, FollowsItsReferenceInDoubleWhateverTheCut) {
  constexpr size_t kCount = 1237;
  const Trial trial{"lamb", lamb_settings(0.1), 0.01};
  const std::vector<float> start = testing::normal_floats(kCount, 1);
  LambParameter whole(start, trial.settings, trial.lr), cut(start, trial.settings, trial.lr);
  Shard<double> reference(trial, std::vector<double>(start.begin(), start.end()));
  for (int t = 1; t <= 50; ++t) {
    const std::vector<float> grad = testing::normal_floats(kCount, 100 + static_cast<uint32_t>(t));
    whole.step(grad, t);
    cut.step(grad, t, {1, 18, 18, 37, 150, 299});
    reference.step(std::vector<double>(grad.begin(), grad.end()), t);
  }
  EXPECT_EQ(whole.param(), cut.param());
  for (size_t i = 0; i < kCount; ++i) {
    const double expected = reference.param()[i];
    ASSERT_NEAR(whole.param()[i], expected, 2e-5 * std::max(1.0, std::abs(expected))) << i;
  }
}

TEST(Lamb, TheRatioIsOneWhereANormIsZero) {
  LambParameter zero({0.0f, 0.0f}, lamb_settings(0), 0.5);
  zero.step({2.0f, -3.0f}, 1);  // Adam's first step: signs
  EXPECT_NEAR(zero.param()[0], -0.5f, 1e-5f);
  EXPECT_NEAR(zero.param()[1], 0.5f, 1e-5f);
  LambParameter still({1.0f, 2.0f}, lamb_settings(0), 0.5);
  still.step({0.0f, 0.0f}, 1);
  EXPECT_EQ(still.param(), (std::vector<float>{1.0f, 2.0f}));
}

TEST(Optimizer, DecayOfTheSpanIsTheOneThatCounts) {
  for (const OptimizerDef& def : optimizer_list()) {
    if (def.direction) continue;  // the caller moves the parameter
    const std::string& name = def.name;
    const OptimizerSettings given = settings(0.5);
    float param = 2.0f;
    const float grad = 0.0f;
    float first = 0, second = 0;
    float* state[] = {&first, &second};
    def.update(given, {&param, &grad, state, 1, 0.1, /*weight_decay=*/0, 1});
    EXPECT_EQ(param, 2.0f) << name << ": no gradient and no decay must leave the parameter";
    def.update(given, {&param, &grad, state, 1, 0.1, /*weight_decay=*/0.5, 2});
    EXPECT_LT(param, 2.0f) << name;
  }
}

TEST(Optimizer, NamesItsStates) {
  const auto names = [](const char* name, const OptimizerSettings& given) {
    return find_optimizer(name)->state_names(given);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("sgd", settings(0)), Names{});
  EXPECT_EQ(names("sgd", settings(0, 0.9)), Names{"momentum_buffer"});
  EXPECT_EQ(names("adamw", settings(0)), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names("adadelta", settings(0)), (Names{"square_avg", "acc_delta"}));
  EXPECT_EQ(names("adagrad", settings(0)), Names{"sum"});
  EXPECT_EQ(names("lion", settings(0)), Names{"exp_avg"});
  EXPECT_EQ(names("lamb", settings(0)), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(find_optimizer("adamax"), nullptr);
}

}  // namespace optimizer_test
}  // namespace ofsdp
