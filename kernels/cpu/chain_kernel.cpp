#include "kernels/cpu/chain_kernel.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/chain_steps.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kBufferFloats = 8192;  // 32 KiB
constexpr int64_t kLongestBlock = 1024;
constexpr size_t kMostValues = Chain::kMostInputs + Chain::kMostSteps;

// Where a value of a block is found.
struct Place {
  enum Kind : uint8_t {
    kWhole,     // an input of the outputs' shape
    kSingle,    // an input of one element
    kRepeated,  // an input of the trailing axes, laid out in the buffer
    kNumber,
    kBuffer,
    kOutput
  };
  Kind kind = kBuffer;
  int64_t index = 0;  // of the input, output or place in the buffer
  int64_t period = 0;
  float number = 0;
};

struct Step {
  RowLoop loop;
  size_t a, b, y;  // values
};

Place place_of_input(const TensorDesc& input, const Shape& shape, size_t i) {
  const auto index = static_cast<int64_t>(i);
  if (input.shape == shape) return {Place::kWhole, index};
  if (input.numel() == 1) return {Place::kSingle, index};
  return {Place::kRepeated, index, input.numel()};
}

class ChainKernel final : public Kernel {
 public:
  ChainKernel(const Chain& chain, const Problem& p) : elements_(p.out(0).numel()) {
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      places_.push_back(place_of_input(p.in(i), p.out(0).shape, i));
    }
    plan(chain, p);
    block_ = std::min(kLongestBlock, kBufferFloats / std::max<int64_t>(buffers_, 1) / 16 * 16);
  }

  Status run(const KernelArgs& args) override {
    parallel_for(elements_, kElementGrain, [&](int64_t begin, int64_t end) {
      alignas(64) float buffer[kBufferFloats];
      for (int64_t at = begin; at < end; at += block_) {
        run_block(args, at, std::min(block_, end - at), buffer);
      }
    });
    return ok_status();
  }

 private:
  // Gives every value a place: results that no later read of an input can lie on go straight to
  // their output, the others to the buffer, whose places are used again after the last read.
  void plan(const Chain& chain, const Problem& p) {
    const size_t values = places_.size() + chain.steps.size();
    std::vector<size_t> last(values, 0);
    for (size_t s = 0; s < chain.steps.size(); ++s) {
      for (int operand : {chain.steps[s].a, chain.steps[s].b}) {
        if (operand >= 0) last[static_cast<size_t>(operand)] = s;
      }
    }
    std::vector<int64_t> free;
    for (Place& place : places_) {
      if (place.kind != Place::kRepeated) continue;
      repeats_.push_back({place.index, place.period, buffers_});
      place = {Place::kBuffer, buffers_++};
    }
    for (size_t s = 0; s < chain.steps.size(); ++s) {
      const ChainStep& step = chain.steps[s];
      const size_t value = places_.size();
      places_.push_back(place_of_step(chain, p, s, free));
      if (step.op == ChainOp::kNumber) continue;
      const auto a = static_cast<size_t>(step.a);
      const size_t b = step.b < 0 ? a : static_cast<size_t>(step.b);
      steps_.push_back({chain_loops(step.op)[DType::kFloat32], a, b, value});
      for (size_t operand : {a, b}) {
        const bool done = last[operand] == s && operand >= static_cast<size_t>(chain.inputs) &&
                          places_[operand].kind == Place::kBuffer;
        if (done && std::ranges::count(free, places_[operand].index) == 0 && !is_kept(operand)) {
          free.push_back(places_[operand].index);
        }
      }
    }
  }

  Place place_of_step(const Chain& chain, const Problem& p, size_t s, std::vector<int64_t>& free) {
    const ChainStep& step = chain.steps[s];
    if (step.op == ChainOp::kNumber) return {Place::kNumber, 0, 0, step.number};
    const int value = chain.inputs + static_cast<int>(s);
    const auto at = std::ranges::find(chain.results, value);
    const auto output = at - chain.results.begin();
    const bool is_result = at != chain.results.end() && p.has_out(static_cast<size_t>(output));
    if (is_result && (output > 0 || s + 1 == chain.steps.size())) return {Place::kOutput, output};
    if (is_result) {  // output 0 may lie on an input that a later step reads
      kept_ = {true, buffers_};
      return {Place::kBuffer, buffers_++};
    }
    if (free.empty()) return {Place::kBuffer, buffers_++};
    const int64_t place = free.back();
    free.pop_back();
    return {Place::kBuffer, place};
  }

  bool is_kept(size_t value) const { return kept_.first && places_[value].index == kept_.second; }

  void run_block(const KernelArgs& args, int64_t at, int64_t n, float* buffer) const {
    std::array<float*, kMostValues> data;
    std::array<int64_t, kMostValues> step;
    for (size_t v = 0; v < places_.size(); ++v) {
      data[v] = address(args, places_[v], at, buffer);
      step[v] = places_[v].kind == Place::kSingle || places_[v].kind == Place::kNumber ? 0 : 1;
    }
    for (const Repeat& r : repeats_) {
      repeat(args.in<float>(static_cast<size_t>(r.input)), r.period, at, n,
             buffer + r.place * block_);
    }
    for (const Step& s : steps_) {
      s.loop({data[s.a], step[s.a], data[s.b], step[s.b], data[s.y], n}, {});
    }
    if (kept_.first) {
      std::memcpy(args.out<float>(0) + at, buffer + kept_.second * block_,
                  static_cast<size_t>(n) * sizeof(float));
    }
  }

  float* address(const KernelArgs& args, const Place& place, int64_t at, float* buffer) const {
    const auto i = static_cast<size_t>(place.index);
    switch (place.kind) {
      case Place::kWhole:
        return args.inputs[i].as<float>() + at;
      case Place::kSingle:
        return args.inputs[i].as<float>();
      case Place::kNumber:
        return const_cast<float*>(&place.number);
      case Place::kOutput:
        return args.out<float>(i) + at;
      case Place::kRepeated:
      case Place::kBuffer:
        break;
    }
    return buffer + place.index * block_;
  }

  // Elements at .. at + n - 1 of `row` put one behind the other without end.
  static void repeat(const float* row, int64_t period, int64_t at, int64_t n, float* to) {
    for (int64_t i = 0; i < n;) {
      const int64_t from = (at + i) % period, count = std::min(n - i, period - from);
      std::copy(row + from, row + from + count, to + i);
      i += count;
    }
  }

  struct Repeat {
    int64_t input, period, place;
  };

  int64_t elements_;
  std::vector<Place> places_;  // per value
  std::vector<Step> steps_;
  std::vector<Repeat> repeats_;
  std::pair<bool, int64_t> kept_{false, 0};  // the place of output 0 until the block is done
  int64_t buffers_ = 0, block_ = 0;
};

}  // namespace

Acceptance chain_accepts(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32)) return Acceptance::refuse("not float32");
  const TensorDesc& out = p.out(0);
  const bool fit = std::ranges::all_of(p.inputs, [&](const TensorDesc& d) {
    if (d.shape == out.shape) return d.layout == out.layout;
    return d.numel() == 1 || (out.layout == Layout::kPlain && is_trailing(d.shape, out.shape));
  });
  return accept_if(fit, "an operand with other axes or another layout");
}

std::unique_ptr<Kernel> make_chain_kernel(const Chain& chain, const Problem& problem) {
  return std::make_unique<ChainKernel>(chain, problem);
}

}  // namespace ofsdp::kernels
