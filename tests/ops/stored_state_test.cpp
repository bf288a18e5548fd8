// Optimizer states in fewer bits: the code book against the paper's construction, and codes against
// a search through all of them. Random rounding against the probabilities, and the update in pieces
// against one of whole arrays.
#include "kernels/core/stored_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "tests/support/namespaces.h"
#include "tests/support/op_values.h"

namespace ofsdp {
namespace stored_state_test {

constexpr StateForm kForms[] = {StateForm::kSigned8, StateForm::kUnsigned8};

// A state's array that begins as zeros.
class Stored {
 public:
  Stored(StateForm form, int64_t numel) : numel_(numel), memory_(stored_bytes(form, numel) + 64) {
    state_ = stored_state(form, memory_.data(), numel);
  }
  Stored(StateForm form, const std::vector<float>& values, const StateRounding& rounding = {})
      : Stored(form, static_cast<int64_t>(values.size())) {
    write_state(state_, values.data(), numel_, rounding);
  }

  const StoredState& state() const { return state_; }
  std::vector<float> values() const {
    std::vector<float> out(static_cast<size_t>(numel_));
    read_state(state_, 0, numel_, out.data());
    return out;
  }
  const std::vector<std::byte>& bytes() const { return memory_; }

 private:
  int64_t numel_;
  std::vector<std::byte> memory_;
  StoredState state_;
};

// create_dynamic_map from the paper's implementation (bitsandbytes), in double: a decade's values
// are the means of neighbouring points in linspace(0.1, 1).
std::vector<double> published_map(bool is_signed) {
  std::vector<double> values{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int items = (1 << (is_signed ? i : i + 1)) + 1;
    const auto point = [items](int k) { return 0.1 + 0.9 * k / (items - 1); };
    for (int k = 0; k + 1 < items; ++k) {
      const double mean = std::pow(10.0, i - 6) * (point(k) + point(k + 1)) / 2;
      values.push_back(mean);
      if (is_signed) values.push_back(-mean);
    }
  }
  std::ranges::sort(values);
  return values;
}

TEST(CodeBook, IsThePublishedMap) {
  for (const StateForm form : kForms) {
    std::vector<float> ours(code_book(form).begin(), code_book(form).end());
    std::ranges::sort(ours);
    const std::vector<double> theirs = published_map(form == StateForm::kSigned8);
    ASSERT_EQ(theirs.size(), ours.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_NEAR(ours[i], theirs[i], 1e-7 * std::abs(theirs[i])) << i;
    }
  }
}

// Multiples of `scale`, which comes first: every magnitude, and the middles between codes.
std::vector<float> multiples(float scale, bool is_signed) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-9, 0), unit(-1, 1);
  std::vector<double> all;
  for (int i = 0; i < 20000; ++i) all.push_back(std::pow(10.0, exponent(random)));
  for (int i = 0; i < 20000; ++i) all.push_back(unit(random));
  const std::vector<double> map = published_map(is_signed);
  for (size_t i = 0; i + 1 < map.size(); ++i) {
    const double middle = (map[i] + map[i + 1]) / 2;
    for (const double near : {0.999999, 1.0, 1.000001}) all.push_back(middle * near);
  }
  std::vector<float> values;
  for (size_t i = 0; i < all.size(); ++i) {
    if (values.size() % kStateBlock == 0) values.push_back(scale);
    const double sign = is_signed && i % 2 == 1 ? -1 : 1;
    values.push_back(static_cast<float>(scale * sign * (is_signed ? all[i] : std::abs(all[i]))));
  }
  return values;
}

// Rounding in float32 decides between equally near codes: to 2^-24 at places up to twice the parts
// of a decade, so to 1e-6 of the value, on either side.
TEST(CodeBook, TakesTheNearestOfAllCodes) {
  for (const StateForm form : kForms) {
    const bool is_signed = form == StateForm::kSigned8;
    const std::vector<double> map = published_map(is_signed);
    for (const float scale : {1.0f, 0.037f, 3e9f, 1e-20f, is_signed ? -0.37f : 0.37f}) {
      const std::vector<float> values = multiples(scale, is_signed);
      const std::vector<float> decoded = Stored(form, values).values();
      for (size_t i = 0; i < values.size(); ++i) {
        const double x = values[i] / static_cast<double>(scale);
        const double y = decoded[i] / static_cast<double>(scale);
        double best = 2;
        for (const double code : map) {
          if (is_signed || x == 0 || code > 0) best = std::min(best, std::abs(code - x));
        }
        ASSERT_LE(std::abs(y - x), best + 3e-6 * std::abs(x) + 1e-13) << i << ": " << x << " " << y;
      }
    }
  }
}

TEST(CodeBook, EveryCodeComesBack) {
  for (const StateForm form : kForms) {
    std::vector<float> values(code_book(form).begin(), code_book(form).end());
    for (float& value : values) value *= 0.75f;
    std::set<std::byte> codes;
    const Stored stored(form, values);
    for (size_t i = 0; i < 256; ++i) codes.insert(stored.bytes()[i]);
    EXPECT_EQ(codes.size(), 256u);
    EXPECT_EQ(stored.values(), values);
  }
}

std::vector<float> blocks_of(StateForm form, size_t count, uint32_t seed) {
  std::vector<float> values = testing::normal_floats(count, seed);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i / 40 % 31) - 20);
    if (form == StateForm::kUnsigned8) values[i] *= values[i];
  }
  return values;
}

// So a checkpoint may hold decoded values.
TEST(StoredState, DecodedValuesEncodeToTheSameBits) {
  for (const StateForm form : kForms) {
    const Stored first(form, blocks_of(form, 100 * kStateBlock + 77, 1));
    const Stored second(form, first.values());
    EXPECT_EQ(first.bytes(), second.bytes());
  }
  const Stored first(StateForm::kBFloat16, testing::normal_floats(999, 1),
                     StateRounding::of(1, 2, 3));
  EXPECT_EQ(first.bytes(), Stored(StateForm::kBFloat16, first.values()).bytes());
  EXPECT_EQ(first.bytes(),
            Stored(StateForm::kBFloat16, first.values(), StateRounding::of(4, 5, 6)).bytes());
}

TEST(StoredState, TheLargestOfABlockIsExact) {
  for (const float sign : {1.0f, -1.0f}) {
    std::vector<float> values = testing::normal_floats(3 * kStateBlock, 5);
    for (size_t b = 0; b < 3; ++b) values[b * kStateBlock + 100 + b] = sign * (7.3f + b);
    const std::vector<float> decoded = Stored(StateForm::kSigned8, values).values();
    for (size_t b = 0; b < 3; ++b) {
      EXPECT_EQ(decoded[b * kStateBlock + 100 + b], values[b * kStateBlock + 100 + b]);
    }
  }
}

TEST(StoredState, ASquareAboveZeroStaysAboveIt) {
  std::vector<float> values(kStateBlock, 0);
  values[0] = 1;
  for (size_t i = 1; i < 100; ++i) values[i] = std::pow(10.0f, -static_cast<float>(i % 30));
  const std::vector<float> decoded = Stored(StateForm::kUnsigned8, values).values();
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(decoded[i] > 0, values[i] > 0) << i;
}

TEST(StoredState, ZerosSubnormalsAndWhatIsNoNumber) {
  for (const StateForm form : kForms) {
    for (const float all : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min()}) {
      const Stored stored(form, std::vector<float>(300, all));
      EXPECT_EQ(stored.values(), std::vector<float>(300, 0.0f));
    }
    for (const float one :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> values(2 * kStateBlock, 1.0f);
      values[17] = one;
      const std::vector<float> decoded = Stored(form, values).values();
      EXPECT_TRUE(std::isnan(decoded[17]) && std::isnan(decoded[0]));
      EXPECT_EQ(decoded[kStateBlock], 1.0f) << "the next block";
    }
  }
}

TEST(StoredState, AnyPartIsReadAsTheWholeHasIt) {
  for (const StateForm form : {StateForm::kFloat32, StateForm::kBFloat16, StateForm::kSigned8}) {
    const Stored stored(form, testing::normal_floats(5 * kStateBlock, 2));
    const std::vector<float> all = stored.values();
    for (const auto& [first, count] :
         std::vector<std::pair<int, int>>{{0, 1}, {255, 2}, {300, 700}, {1279, 1}}) {
      std::vector<float> part(static_cast<size_t>(count));
      read_state(stored.state(), first, count, part.data());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first)) << first;
    }
    std::vector<std::byte> copied(stored_bytes(form, 3 * kStateBlock));
    const StoredState copy =
        copy_state(stored.state().from(kStateBlock), 2 * kStateBlock + 9, copied.data());
    std::vector<float> part(2 * kStateBlock + 9);
    read_state(copy, 0, static_cast<int64_t>(part.size()), part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + kStateBlock));
  }
}

TEST(StoredState, BytesAreThoseOfElementsAndScales) {
  EXPECT_EQ(stored_bytes(StateForm::kFloat32, 1024), 4096u);
  EXPECT_EQ(stored_bytes(StateForm::kBFloat16, 1024), 2048u);
  EXPECT_EQ(stored_bytes(StateForm::kSigned8, 1024), 1024u + 4 * 4);
  EXPECT_EQ(stored_bytes(StateForm::kUnsigned8, 1025), 1280u + 5 * 4);
}

// Two neighbours in bfloat16, and how often the upper one is taken.
TEST(RandomRounding, TakesANeighbourAsOftenAsItIsNear) {
  constexpr int64_t kCount = 200000;
  for (const float x : {1.0f + 0x1p-10f, -3.71f, 1e-20f, 1e-41f, 6.0e37f, 0.9999f}) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const auto low = std::bit_cast<float>(bits & 0xffff0000);
    const auto high = std::bit_cast<float>((bits & 0xffff0000) + 0x10000);
    const double expected = (static_cast<double>(x) - low) / (static_cast<double>(high) - low);
    for (const int state : {0, 1}) {
      StateRounding rounding = StateRounding::of(11, 3, 70);
      rounding.state = state;
      const Stored stored(StateForm::kBFloat16, std::vector<float>(kCount, x), rounding);
      int64_t highs = 0;
      for (const float y : stored.values()) {
        ASSERT_TRUE(y == low || y == high) << x << " " << y;
        highs += y == high ? 1 : 0;
      }
      const double sigma = std::sqrt(expected * (1 - expected) / kCount);
      EXPECT_NEAR(static_cast<double>(highs) / kCount, expected, 5 * sigma) << x << " " << state;
    }
  }
}

TEST(RandomRounding, FollowsSeedStepParameterElementAndState) {
  const std::vector<float> values(1000, 1.003f);
  std::set<std::vector<float>> seen;
  for (const auto& [seed, parameter, step] :
       std::vector<std::array<int, 3>>{{0, 0, 1}, {1, 0, 1}, {0, 1, 1}, {0, 0, 2}}) {
    for (const int state : {0, 1}) {
      for (const int64_t first : {int64_t{0}, int64_t{1}}) {
        StateRounding rounding = StateRounding::of(static_cast<uint64_t>(seed), parameter, step);
        rounding.state = state;
        rounding.first = first;
        seen.insert(Stored(StateForm::kBFloat16, values, rounding).values());
      }
    }
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(RandomRounding, KeepsWhatHasNoFraction) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> values{0.0f, -0.0f, 1.5f, -2.0f, kInf, -kInf, 0x1p-130f};
  const std::vector<float> kept =
      Stored(StateForm::kBFloat16, values, StateRounding::of(1, 2, 3)).values();
  EXPECT_EQ(0, std::memcmp(kept.data(), values.data(), values.size() * sizeof(float)));
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
    const std::vector<float> nan(64, std::bit_cast<float>(bits));
    for (const float y : Stored(StateForm::kBFloat16, nan, StateRounding::of(1, 2, 3)).values()) {
      EXPECT_TRUE(std::isnan(y)) << bits;
    }
  }
}

// A moving average with weight 0.001 of the squares 1 and 9, in turn, reaches their mean, 5, in
// 8,000 updates. Rounded to nearest it stops early: an update is too short to reach the next
// bfloat16.
TEST(RandomRounding, AMovingAverageReachesTheMean) {
  constexpr size_t kCount = 4096;
  const auto advance = [](bool at_random) {
    std::vector<float> v(kCount, 0.0f);
    for (int step = 1; step <= 8000; ++step) {
      const float g2 = step % 2 == 0 ? 1.0f : 9.0f;
      for (float& one : v) one = 0.999f * one + 0.001f * g2;
      StateRounding rounding = StateRounding::of(0, 0, step);
      rounding.random = at_random;
      v = Stored(StateForm::kBFloat16, v, rounding).values();
    }
    double sum = 0;
    for (const float one : v) sum += one;
    return sum / kCount;
  };
  EXPECT_NEAR(advance(true), 5.0, 0.02);
  EXPECT_GT(std::abs(advance(false) - 5.0), 0.5);
}

OptimizerSettings settings() {
  OptimizerSettings made;
  made.momentum = 0.9;
  return made;
}

// One update on whole arrays: decoded, advanced, encoded.
void update_whole(const OptimizerDef& optimizer, std::vector<float>& param,
                  const std::vector<float>& grad, std::vector<Stored>& states, int64_t step) {
  std::vector<std::vector<float>> values;
  std::vector<float*> pointers;
  for (const Stored& state : states) values.push_back(state.values());
  for (std::vector<float>& one : values) pointers.push_back(one.data());
  optimizer.update(settings(), {param.data(), grad.data(), pointers.data(),
                                static_cast<int64_t>(param.size()), 0.01, 0.1, step});
  for (size_t i = 0; i < states.size(); ++i) {
    StateRounding rounding = StateRounding::of(9, 4, step);
    rounding.state = static_cast<int>(i);
    write_state(states[i].state(), values[i].data(), static_cast<int64_t>(param.size()), rounding);
  }
}

void update_in_spans(const OptimizerDef& optimizer, std::vector<float>& param,
                     const std::vector<float>& grad, const std::vector<Stored>& states,
                     int64_t step, const std::vector<int64_t>& cuts) {
  for (size_t c = 0; c + 1 < cuts.size(); ++c) {
    const int64_t at = cuts[c];
    std::vector<StoredState> here;
    for (const Stored& state : states) here.push_back(state.state().from(at));
    StateRounding rounding = StateRounding::of(9, 4, step);
    rounding.first = at;
    update_stored(optimizer, settings(),
                  {param.data() + at, grad.data() + at, nullptr, cuts[c + 1] - at, 0.01, 0.1, step},
                  here, rounding);
  }
}

TEST(UpdateStored, IsDecodeUpdateEncodeWhateverTheCut) {
  constexpr int64_t kCount = 10 * kStateBlock + 48;
  for (const OptimizerDef& optimizer : optimizer_list()) {
    if (optimizer.factors()) continue;
    for (const StateDType dtype : {StateDType::kBFloat16, StateDType::kInt8}) {
      std::vector<float> param = testing::normal_floats(kCount, 1), other = param;
      std::vector<Stored> whole, cut;
      const auto names = optimizer.state_names(settings());
      for (size_t i = 0; i < names.size(); ++i) {
        const StateForm form = state_form(dtype, (optimizer.traits.squares >> i & 1) != 0);
        whole.emplace_back(form, kCount);
        cut.emplace_back(form, kCount);
      }
      for (int64_t step = 1; step <= 5; ++step) {
        const auto grad = testing::normal_floats(kCount, 50 + static_cast<uint32_t>(step));
        update_whole(optimizer, param, grad, whole, step);
        update_in_spans(optimizer, other, grad, cut, step, {0, 256, 2048, 2304, kCount});
      }
      EXPECT_EQ(param, other) << optimizer.name;
      for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(whole[i].bytes(), cut[i].bytes()) << optimizer.name << " " << names[i];
      }
    }
  }
}

// The optimizer's row tells which states are never negative: any other state would lose the
// sign.
TEST(UpdateStored, SquaresAreTheStatesThatStayPositive) {
  constexpr int64_t kCount = 1000;
  for (const OptimizerDef& optimizer : optimizer_list()) {
    const auto names = optimizer.state_names(settings());
    std::vector<float> param = testing::normal_floats(kCount, 1);
    std::vector<std::vector<float>> states(names.size(), std::vector<float>(kCount, 0.0f));
    std::vector<float*> pointers;
    for (auto& state : states) pointers.push_back(state.data());
    for (int64_t step = 1; step <= 5; ++step) {
      const auto grad = testing::normal_floats(kCount, 70 + static_cast<uint32_t>(step));
      optimizer.update(settings(),
                       {param.data(), grad.data(), pointers.data(), kCount, 0.01, 0, step});
    }
    for (size_t i = 0; i < names.size() && !optimizer.factors(); ++i) {
      const bool negative = std::ranges::any_of(states[i], [](float x) { return x < 0; });
      EXPECT_EQ((optimizer.traits.squares >> i & 1) != 0, !negative)
          << optimizer.name << " " << names[i];
    }
  }
}

}  // namespace stored_state_test
}  // namespace ofsdp
