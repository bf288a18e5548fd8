// ofsdp.Chain(x0, x1, ...): elementwise operators that fusion joined, in one pass over memory.
// kernels/core/chain.h describes the attributes steps and results. Inputs are float32, bfloat16 or
// float16, and have the output's shape, one element, or trailing axes of the output. Outputs after
// the first are for the gradient. By the chain rule, dx is one ofsdp.ChainGrad(the inputs, dy and y
// that it needs), which may have several outputs and has no gradient.
#include "kernels/core/chain.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace chain {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Chain chain, Chain::parse(c.attributes, c.inputs.size()));
  const DType dtype = c.inputs[0].dtype;
  Shape shape = c.inputs[0].shape;
  for (const TensorDesc& input : c.inputs) {
    if (input.dtype != dtype) {
      return input_error("expected inputs of one dtype, found {} and {}", c.inputs[0].text(),
                         input.text());
    }
    OFSDP_ASSIGN_OR_RETURN(shape, broadcast(shape, input.shape));
  }
  const auto whole = std::find_if(c.inputs.rbegin(), c.inputs.rend(),
                                  [&](const TensorDesc& input) { return input.shape == shape; });
  if (whole == c.inputs.rend()) return input_error("no input has the shape {}", shape.text());
  return std::vector(chain.results.size(), *whole);
}

// A gradient that is dy itself needs no chain, and a broadcast operand's gradient is summed after
// the chain.
void grad(GradBuilder& b) {
  const Chain forward = *Chain::parse(b.attributes(), b.num_inputs());
  std::vector<bool> wanted;
  for (size_t i = 0; i < b.num_inputs(); ++i) wanted.push_back(b.needs_grad(i));
  const CompactedChain made = compacted(chain_gradient(forward, wanted));
  auto old_input = [&](int i) {
    if (i < forward.inputs) return b.input(static_cast<size_t>(i));
    const int result = i - forward.inputs - 1;
    return result < 0 ? b.grad_output(0) : b.output(static_cast<size_t>(result));
  };
  std::vector<Ref> slopes;
  if (!made.chain.results.empty()) {
    std::vector<Ref> inputs;
    for (int i : made.used_inputs) inputs.push_back(old_input(i));
    slopes = b.emit("ofsdp.ChainGrad", inputs, made.chain.attributes(), made.chain.results.size());
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int output = made.outputs[i];
    if (output == CompactedChain::kNone) continue;
    const Ref slope = output >= 0 ? slopes[static_cast<size_t>(output)] : old_input(-1 - output);
    b.set_grad(i, b.sum_to(slope, b.input(i)));
  }
}

// Functions in ChainOp's order; operations with one operand do not read b.
double reference_step(ChainOp op, double a, double b) {
  using Function = double (*)(double, double);
  constexpr Function kFunctions[kChainOps] = {
      nullptr,                             // kNumber
      [](double a, double) { return a; },  // kRound: the reference rounds nowhere
      [](double a, double b) { return a + b; },
      [](double a, double b) { return a - b; },
      [](double a, double b) { return a * b; },
      [](double a, double b) { return a / b; },
      [](double a, double) { return -a; },
      [](double a, double) { return a < 0 ? 0 : a; },
      [](double a, double) { return 1 / (1 + std::exp(-a)); },
      [](double a, double) { return std::tanh(a); },
      [](double a, double) { return std::exp(a); },
      [](double a, double) { return std::log(a); },
      [](double a, double) { return std::sqrt(a); },
      [](double a, double) { return 1 / a; },
      [](double a, double) { return std::erf(a); },
      [](double a, double) { return std::log1p(std::exp(-std::abs(a))) + (a < 0 ? 0 : a); },
      [](double a, double) { return reference_gelu(a, false); },
      [](double a, double) { return reference_gelu(a, true); },
      [](double a, double b) { return b > 0 ? a : 0; },
      [](double a, double b) { return a * b * (1 - b); },
      [](double a, double b) { return a * (1 - b * b); },
      [](double a, double b) { return a * 2 / std::sqrt(M_PI) * std::exp(-b * b); },
      [](double a, double b) { return a / (1 + std::exp(-b)); },
      [](double a, double b) { return a * reference_gelu_slope(b, false); },
      [](double a, double b) { return a * reference_gelu_slope(b, true); },
  };
  return kFunctions[static_cast<size_t>(op)](a, b);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Chain chain = *Chain::parse(c.attributes, c.inputs.size());
  std::vector<RefTensor> outputs;
  for (const TensorDesc& desc : c.output_descs) outputs.push_back(zeros(desc));
  for (int64_t i = 0; i < c.output_descs[0].numel(); ++i) {
    const auto index = unravel(c.output_descs[0].shape, i);
    std::vector<double> values;
    for (const RefTensor& x : c.inputs) {
      values.push_back(x.values[ravel_broadcast(x.desc.shape, index)]);
    }
    for (const ChainStep& s : chain.steps) {
      auto at = [&](int v) { return values[static_cast<size_t>(v)]; };
      const int arity = chain_op_arity(s.op);
      values.push_back(arity == 0 ? static_cast<double>(s.number)
                                  : reference_step(s.op, at(s.a), arity == 1 ? 0 : at(s.b)));
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (!outputs[k].desc.present()) continue;
      outputs[k].values[static_cast<size_t>(i)] = values[static_cast<size_t>(chain.results[k])];
    }
  }
  return outputs;
}

// --- the kernel: block after block passes through all steps while it is in the first-level cache;
// each step is one vectorised loop ---
//
// An operand has the outputs' shape and layout, or one element, or (plain) trailing axes of that
// shape, which are repeated. Values between steps live in a buffer on the thread's stack, at
// offsets that planning decides; the block is as long as fits. Output 0 may share an input's bytes:
// nothing reads a block's inputs after output 0 is written. 16-bit operands are widened into the
// buffer and rounded out of it, a block at a time.

constexpr int64_t kBufferFloats = 8192;  // 32 KiB
constexpr int64_t kLongestBlock = 1024;
constexpr size_t kMaxValues = Chain::kMaxInputs + Chain::kMaxSteps;

// The place of a block's value.
struct Place {
  enum Kind : uint8_t {
    kWhole,     // an input with the outputs' shape
    kSingle,    // an input with one element
    kRepeated,  // an input with trailing axes, until it is in the buffer
    kNumber,
    kBuffer,
    kOutput
  };
  Kind kind = kBuffer;
  int64_t index = 0;  // which input, output or buffer slot
  int64_t period = 0;
  float number = 0;
};

struct Step {
  RowLoop loop;    // nullptr: kRound
  size_t a, b, y;  // value indices
};

Place place_of_input(const TensorDesc& input, const Shape& shape, size_t i) {
  const auto index = static_cast<int64_t>(i);
  const auto kind = input.shape == shape ? Place::kWhole
                    : input.numel() == 1 ? Place::kSingle
                                         : Place::kRepeated;
  return {kind, index, input.numel()};
}

class ChainKernel final : public Kernel {
 public:
  ChainKernel(const Chain& chain, const Problem& p)
      : elements_(p.out(0).numel()),
        widen_(width_span(p.out(0).dtype, DType::kFloat32)),
        narrow_(width_span(DType::kFloat32, p.out(0).dtype)),
        width_(dtype_size(p.out(0).dtype)) {
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
  // Gives every value a place. A result goes straight to an output if no later step reads an input
  // that may share those bytes; else it goes to the buffer, where a slot is reused after the last
  // read.
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
      if (place.kind != Place::kRepeated && widen_ == nullptr) continue;
      loads_.push_back({place.index, place.period, buffers_});
      place = {Place::kBuffer, buffers_++};
    }
    for (size_t s = 0; s < chain.steps.size(); ++s) {
      const ChainStep& step = chain.steps[s];
      const size_t value = places_.size();
      places_.push_back(place_of_step(chain, p, s, free));
      if (step.op == ChainOp::kNumber) continue;
      const auto a = static_cast<size_t>(step.a);
      const size_t b = step.b < 0 ? a : static_cast<size_t>(step.b);
      const RowLoop loop =
          step.op == ChainOp::kRound ? nullptr : chain_loops(step.op)[DType::kFloat32];
      steps_.push_back({loop, a, b, value});
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
    const bool straight = narrow_ == nullptr && (output > 0 || s + 1 == chain.steps.size());
    if (is_result && straight) return {Place::kOutput, output};
    if (is_result) {  // output 0 may share bytes with an input that a later step reads
      stores_.push_back({output, buffers_});
      return {Place::kBuffer, buffers_++};
    }
    if (free.empty()) return {Place::kBuffer, buffers_++};
    const int64_t place = free.back();
    free.pop_back();
    return {Place::kBuffer, place};
  }

  bool is_kept(size_t value) const {
    return std::ranges::count(stores_, places_[value].index, &Store::place) > 0;
  }

  void run_block(const KernelArgs& args, int64_t at, int64_t n, float* buffer) const {
    std::array<float*, kMaxValues> data;
    std::array<int64_t, kMaxValues> step;
    for (size_t v = 0; v < places_.size(); ++v) {
      data[v] = address(args, places_[v], at, buffer);
      step[v] = places_[v].kind == Place::kSingle || places_[v].kind == Place::kNumber ? 0 : 1;
    }
    for (const Load& l : loads_) {
      load(args.inputs[static_cast<size_t>(l.input)].data, l.period, at, n,
           buffer + l.place * block_);
    }
    for (const Step& s : steps_) {
      if (s.loop == nullptr) {
        round(data[s.a], step[s.a], n, data[s.y]);
      } else {
        s.loop({data[s.a], step[s.a], data[s.b], step[s.b], data[s.y], n}, {});
      }
    }
    for (const Store& s : stores_) {
      std::byte* const to =
          args.outputs[static_cast<size_t>(s.output)].data + static_cast<size_t>(at) * width_;
      convert(narrow_, reinterpret_cast<const std::byte*>(buffer + s.place * block_), n, to);
    }
  }

  // Rounds `from`, n elements or one (step 0), to the element type and widens them again.
  void round(const float* from, int64_t step, int64_t n, float* to) const {
    std::array<float, kLongestBlock> narrow;
    const int64_t count = step == 0 ? 1 : n;
    convert(narrow_, reinterpret_cast<const std::byte*>(from), count,
            reinterpret_cast<std::byte*>(narrow.data()));
    convert(widen_, reinterpret_cast<const std::byte*>(narrow.data()), count,
            reinterpret_cast<std::byte*>(to));
    std::fill(to + count, to + n, to[0]);
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

  // Loads elements at .. at + n - 1 of `row`, which repeats after `period` elements.
  void load(const std::byte* row, int64_t period, int64_t at, int64_t n, float* to) const {
    if (period == 1) {
      convert(widen_, row, 1, reinterpret_cast<std::byte*>(to));
      std::fill_n(to + 1, n - 1, to[0]);
      return;
    }
    for (int64_t i = 0; i < n;) {
      const int64_t from = (at + i) % period, count = std::min(n - i, period - from);
      convert(widen_, row + static_cast<size_t>(from) * width_, count,
              reinterpret_cast<std::byte*>(to + i));
      i += count;
    }
  }

  // Converts by `span`; null means float32 to float32.
  static void convert(WidthSpan span, const std::byte* from, int64_t count, std::byte* to) {
    if (span == nullptr) {
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    } else {
      span(from, to, 0, count);
    }
  }

  struct Load {  // an input, when the block starts
    int64_t input, period, place;
  };
  struct Store {  // an output, when the block is done
    int64_t output, place;
  };

  int64_t elements_;
  std::vector<Place> places_;  // per value
  std::vector<Step> steps_;
  std::vector<Load> loads_;
  std::vector<Store> stores_;
  WidthSpan widen_, narrow_;  // null: float32
  size_t width_;              // bytes per operand element
  int64_t buffers_ = 0, block_ = 0;
};

Acceptance accepts(const Problem& p) {
  const TensorDesc& out = p.out(0);
  if (!is_32_or_16_bit_float(out.dtype) || !p.all_dtype(out.dtype)) {
    return Acceptance::refuse("not float32 or 16-bit floats");
  }
  const bool fit = std::ranges::all_of(p.inputs, [&](const TensorDesc& d) {
    if (d.shape == out.shape) return d.layout == out.layout;
    return d.numel() == 1 || (out.layout == Layout::kPlain && is_trailing(d.shape, out.shape));
  });
  return accept_if(fit, "an operand with other axes or another layout");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return std::make_unique<ChainKernel>(*Chain::parse(p.attributes, p.inputs.size()), p);
}

OpDef definition(const char* name) {
  return {.domain = kOwnDomain,
          .name = name,
          .infer = infer,
          .reference = reference,
          .cpu = {{"blocks", accepts, create}},
          .inplace_inputs = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
          .layout = LayoutRule::kElementwise};
}

}  // namespace chain

void add_chain(Registry& registry) {
  using namespace chain;
  OpDef chain = definition("Chain"), gradient = definition("ChainGrad");
  chain.grad = grad;
  registry.add(std::move(chain));
  registry.add(std::move(gradient));
}

}  // namespace ofsdp::kernels::ops
