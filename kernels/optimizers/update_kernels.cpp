// The update operations of kernels/core/update.h on the CPU, for any OptimizerDef. Each kernel
// loops over the rows of a stretch in blocks of kUpdateBlock elements, which stay in the
// first-level cache. A kernel keeps no state between calls, so several threads may run it on
// different stretches.
//
//   PlannedUpdate  decoded once, when the kernel is made
//   UpdateCall     one call: a method per operation, and below them helpers that read the operands
#include <array>
#include <cmath>

#include "kernels/core/optimizer.h"
#include "kernels/core/stored_state.h"
#include "kernels/core/update.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/optimizers/parameter_updates.h"
#include "kernels/optimizers/squares.h"

namespace ofsdp::kernels {
namespace {

using Block = std::array<float, static_cast<size_t>(kUpdateBlock)>;

OFSDP_MULTIARCH void scale_by(float* values, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] *= factor;
}

OFSDP_MULTIARCH void add_onto(float* __restrict values, const float* __restrict onto, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] += onto[i];
}

OFSDP_MULTIARCH void take_step(float* __restrict values, const float* __restrict steps, float keep,
                               float length, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = values[i] * keep - length * steps[i];
}

OFSDP_MULTIARCH void follow(float* __restrict average, const float* __restrict values,
                            updates::Lerp lerp, int64_t n) {
  for (int64_t i = 0; i < n; ++i) average[i] = lerp(average[i], values[i]);
}

// The optimizer and the decoded problem of a kernel.
struct PlannedUpdate {
  PlannedUpdate(const OptimizerDef& def, const Problem& p)
      : optimizer(def),
        spec(update_spec(p)),
        rows(update_rows(p)),
        numel(p.out(UpdateOut::kParam).numel()) {
    gradient = p.has_in(UpdateIn::kGradient) ? p.in(UpdateIn::kGradient).dtype : DType::kFloat32;
    copy = p.has_out(UpdateOut::kCopy) ? p.out(UpdateOut::kCopy).dtype : DType::kUndefined;
    for (size_t i = UpdateOut::kStates; i < p.outputs.size(); ++i) {
      forms.push_back(state_form(p.out(i).dtype));
      sizes.push_back(p.out(i).numel());
    }
    plain = gradient == DType::kFloat32 && spec.round_to == DType::kFloat32 && !spec.scaled &&
            !p.has_in(UpdateIn::kOnto);
  }

  OptimizerDef optimizer;
  UpdateSpec spec;
  std::vector<UpdateRow> rows;
  int64_t numel;
  DType gradient, copy;
  std::vector<StateForm> forms;  // per state of the unit: the storage
  std::vector<int64_t> sizes;
  bool plain;  // the gradient is float32 and needs no rounding, scaling or addition
};

class UpdateCall {
 public:
  UpdateCall(const PlannedUpdate& plan, const KernelArgs& args) : plan_(plan), args_(args) {
    const auto* const given = args.in<Stretch>(UpdateIn::kStretch);
    stretch_ = given == nullptr ? Stretch{0, plan.numel} : *given;
  }

  void advance() const {
    Block block;
    // If the parameters move only in `step`, a kRoundOp after it makes the copy.
    const bool copies = plan_.copy != DType::kUndefined && plan_.optimizer.direction == nullptr;
    each_block([&](const UpdateRow& row, int64_t at, int64_t n) {
      update(row, at, gradient(at, n, block), n);
      if (copies) round(at, n);
    });
  }

  void keep() const {
    Block block;
    float* const kept = args_.out<float>(UpdateOut::kKept);
    each_block([&](const UpdateRow& row, int64_t at, int64_t n) {
      const float* const from = gradient(at, n, block);
      if (plan_.optimizer.traits.orthogonal) {
        take_direction(row, at, from, n, kept + at);
      } else if (from != kept + at) {
        std::copy_n(from, n, kept + at);
      }
    });
  }

  void sums() const {
    const auto* const from = args_.in<float>(UpdateIn::kGradient);
    float* const sums = args_.out<float>(UpdateOut::kSums);
    for (const UpdateRow& row : plan_.rows) {
      sums_of_squares({row.shape(), row.first, row.end - row.begin}, from + row.begin,
                      sums + row.sums, sums + row.column_sums());
    }
  }

  void factors() const {
    const float* const sums = args_.out<float>(UpdateOut::kSums);
    float* const means = args_.out<float>(UpdateOut::kMeans);
    for (const UpdateRow& row : plan_.rows) {
      const MatrixSpan span{row.shape(), row.first, row.count()};
      const int64_t first = span.first_matrix(), matrices = span.last_matrix() - first;
      const auto move = [&](size_t state, const float* from, int64_t each, int64_t length) {
        float* const held = floats(row, state) + first * each;
        advance_factors(held, from + first * each, matrices * each, length, step_number());
        return held;
      };
      const float* const held = move(0, sums + row.sums, row.rows, row.columns);
      move(1, sums + row.column_sums(), row.columns, row.rows);
      for (int64_t m = 0; m < matrices; ++m) {
        means[row.means + first + m] = mean_row_factor(held + m * row.rows, row.rows);
      }
    }
  }

  void norms() const {
    Block block;
    const float* const param = args_.out<float>(UpdateOut::kParam);
    for (const UpdateRow& row : plan_.rows) {
      ExactSquares exact[2];
      double sums[2] = {};
      for (int64_t at = row.begin; at < row.end; at += kUpdateBlock) {
        const int64_t n = std::min(kUpdateBlock, row.end - at);
        const std::span<const float> both[2] = {
            {param + at, static_cast<size_t>(n)},
            {direction(row, at, n, block), static_cast<size_t>(n)}};
        for (size_t i = 0; i < 2; ++i) {
          if (plan_.spec.exact) {
            exact[i].add(both[i]);
          } else {
            sums[i] += sum_of_squares(both[i]);
          }
        }
      }
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t place = 2 * row.parameter + i;
        if (plan_.spec.exact) {
          std::ranges::copy(exact[i].limbs(),
                            args_.out<double>(UpdateOut::kPartials) + place * ExactSquares::kLimbs);
        } else {
          args_.out<double>(UpdateOut::kSquares)[place] += sums[i];
        }
      }
    }
  }

  // p = (1 - lr weight_decay) p - step_length d. If an optimizer does not keep the gradient (LAMB),
  // d contains the decay, and the first factor is 1.
  void step() const {
    Block block;
    float* const param = args_.out<float>(UpdateOut::kParam);
    const OptimizerDef& optimizer = plan_.optimizer;
    each_block([&](const UpdateRow& row, int64_t at, int64_t n) {
      ParameterNorms norms{};
      if (optimizer.needs_norms()) {
        const double* const squares = args_.out<double>(UpdateOut::kSquares) + 2 * row.parameter;
        norms.param = std::sqrt(squares[0]);
        norms.direction = std::sqrt(squares[1]);
        norms.count = row.numel;
        norms.step = step_number();
      }
      norms.lr = rate();
      norms.adjust = row.adjust;
      const bool decays = optimizer.keeps_gradient() && row.weight_decay != 0;
      const float keep = decays ? static_cast<float>(1 - rate() * row.weight_decay) : 1.0f;
      const double length = optimizer.step_length(plan_.spec.settings, norms);
      take_step(param + at, direction(row, at, n, block), keep, static_cast<float>(length), n);
    });
  }

  void average() const {
    const float* const param = args_.out<float>(UpdateOut::kParam);
    float* const to = args_.out<float>(UpdateOut::kAverage);
    const bool first = step_number() == plan_.spec.first_update;
    const auto lerp = updates::Lerp::of(1 - plan_.spec.average_decay);
    each_piece([&](const UpdateRow&, int64_t at, int64_t n) {
      if (first) {
        std::copy_n(param + at, n, to + at);
      } else {
        follow(to + at, param + at, lerp, n);
      }
    });
  }

  void swap() const {
    float* const param = args_.out<float>(UpdateOut::kParam);
    std::swap_ranges(param + stretch_.begin, param + stretch_.end,
                     args_.out<float>(UpdateOut::kAverage) + stretch_.begin);
  }

  void round() const { round(stretch_.begin, stretch_.end - stretch_.begin); }

 private:
  double rate() const {
    return updates::rate_of(*args_.in<ofsdp_step_numbers>(UpdateIn::kNumbers), plan_.spec.base_lr);
  }
  const ofsdp_run_state& run_state() const {
    return *args_.in<ofsdp_run_state>(UpdateIn::kRunState);
  }
  int64_t step_number() const { return run_state().optimizer_step; }

  template <typename F>
  void each_piece(const F& f) const {
    kernels::each_piece(plan_.rows, stretch_, f);
  }
  template <typename F>
  void each_block(const F& f) const {
    each_piece([&](const UpdateRow& row, int64_t at, int64_t n) {
      for (int64_t done = 0; done < n; done += kUpdateBlock) {
        f(row, at + done, std::min(kUpdateBlock, n - done));
      }
    });
  }

  // Returns elements [at, at + n) of the gradient after rounding to spec.round_to, adding kOnto and
  // scaling: a pointer to the operand if none of these is planned, else to `block`.
  const float* gradient(int64_t at, int64_t n, Block& block) const {
    const int64_t first = at - stretch_.begin;
    const auto* const from = args_.in<std::byte>(UpdateIn::kGradient) +
                             static_cast<size_t>(first) * dtype_size(plan_.gradient);
    if (plan_.plain) return reinterpret_cast<const float*>(from);
    if (plan_.gradient == DType::kFloat32) {
      std::copy_n(reinterpret_cast<const float*>(from), n, block.data());
    } else {
      widen(plan_.gradient, from, block.data(), n);
    }
    if (plan_.spec.round_to != DType::kFloat32) {
      std::array<uint16_t, static_cast<size_t>(kUpdateBlock)> narrowed;
      narrow(block.data(), plan_.spec.round_to, narrowed.data(), n);
      widen(plan_.spec.round_to, narrowed.data(), block.data(), n);
    }
    const auto* const onto = args_.in<float>(UpdateIn::kOnto);
    if (onto != nullptr) add_onto(block.data(), onto + first, n);
    if (plan_.spec.scaled) scale_by(block.data(), run_state().gradient_factor, n);
    return block.data();
  }

  // Returns a float32 state, to be indexed by the shard's element, or for factors by row or column.
  float* floats(const UpdateRow& row, size_t i) const {
    return args_.out<float>(UpdateOut::kStates + static_cast<size_t>(row.states[i])) +
           row.shifts[i];
  }
  bool encoded(const UpdateRow& row) const {
    return row.num_states > 0 &&
           plan_.forms[static_cast<size_t>(row.states[0])] != StateForm::kFloat32;
  }
  StoredState stored(const UpdateRow& row, size_t i, int64_t at) const {
    const auto state = static_cast<size_t>(row.states[i]);
    return stored_state(plan_.forms[state], args_.out<std::byte>(UpdateOut::kStates + state),
                        plan_.sizes[state])
        .from(at + row.shifts[i]);
  }
  OptimizerSpan<float> span(const UpdateRow& row, int64_t at, const float* from, int64_t n,
                            float* const* states) const {
    return {.param = args_.out<float>(UpdateOut::kParam) + at,
            .grad = from,
            .state = states,
            .count = n,
            .lr = rate(),
            .weight_decay = row.weight_decay,
            .step = step_number()};
  }

  void update(const UpdateRow& row, int64_t at, const float* from, int64_t n) const {
    std::array<float*, kMaxRowStates> states{};
    const auto count = static_cast<size_t>(row.num_states);
    if (!encoded(row)) {
      for (size_t i = 0; i < count; ++i) states[i] = floats(row, i) + at;
      return plan_.optimizer.update(plan_.spec.settings, span(row, at, from, n, states.data()));
    }
    std::array<StoredState, kMaxStates> encoded;
    for (size_t i = 0; i < count; ++i) encoded[i] = stored(row, i, at);
    StateRounding rounding =
        StateRounding::of(plan_.spec.seed, static_cast<int>(row.parameter), step_number());
    rounding.first = row.first + at - row.begin;
    update_stored(plan_.optimizer, plan_.spec.settings, span(row, at, from, n, states.data()),
                  std::span(encoded).first(count), rounding);
  }

  // Writes the directions of elements [at, at + n) to `to`, by the optimizer's formula. `from`: the
  // kept gradient, or null.
  void take_direction(const UpdateRow& row, int64_t at, const float* from, int64_t n,
                      float* to) const {
    std::array<float*, kMaxRowStates> states{};
    std::array<Block, kMaxStates> decoded;
    for (size_t i = 0; i < static_cast<size_t>(row.num_states); ++i) {
      if (encoded(row)) {
        read_state(stored(row, i, at), 0, n, decoded[i].data());
        states[i] = decoded[i].data();
      } else {
        states[i] = floats(row, i) + at;
      }
    }
    plan_.optimizer.direction(plan_.spec.settings, span(row, at, from, n, states.data()), to);
  }

  const float* direction(const UpdateRow& row, int64_t at, int64_t n, Block& block) const {
    const auto* const kept = args_.out<float>(UpdateOut::kKept);
    if (plan_.optimizer.traits.orthogonal) return kept + at;
    if (row.columns > 0) {
      take_factored(row, at, n, block.data());
    } else {
      take_direction(row, at, kept == nullptr ? nullptr : kept + at, n, block.data());
    }
    return block.data();
  }

  // As take_direction for factored states, one matrix after the other. Writes 0 for the padding
  // after the parameter.
  void take_factored(const UpdateRow& row, int64_t at, int64_t n, float* to) const {
    const MatrixShape shape = row.shape();
    const auto* const kept = args_.out<float>(UpdateOut::kKept) + at;
    const float* const means = args_.out<float>(UpdateOut::kMeans) + row.means;
    const int64_t first = row.first + at - row.begin;
    const int64_t count = std::min(n, row.numel - first);
    int64_t done = 0;
    while (done < count) {
      const int64_t matrix = (first + done) / shape.size();
      const int64_t from = first + done - matrix * shape.size();
      const int64_t part = std::min(count - done, shape.size() - from);
      factored_direction({shape, from, part}, kept + done, floats(row, 0) + matrix * shape.rows,
                         floats(row, 1) + matrix * shape.columns, means[matrix], to + done);
      done += part;
    }
    std::fill(to + done, to + n, 0.0f);
  }

  void round(int64_t at, int64_t n) const {
    narrow(
        args_.out<float>(UpdateOut::kParam) + at, plan_.copy,
        args_.out<std::byte>(UpdateOut::kCopy) + static_cast<size_t>(at) * dtype_size(plan_.copy),
        n);
  }

  const PlannedUpdate& plan_;
  const KernelArgs& args_;
  Stretch stretch_;
};

OFSDP_MULTIARCH void divide(float* values, float by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = values[i] / by;
}

// Copies; -0 becomes 0, as if other ranks' zeros had been added (kPutOp).
OFSDP_MULTIARCH void add_zero(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] + 0.0f;
}

void normalize(float* values, int64_t n) {
  const double norm = std::sqrt(sum_of_squares({values, static_cast<size_t>(n)}));
  divide(values, static_cast<float>(std::max(norm, updates::Muon::kEps)), n);
}

void add(Registry& registry, const std::string& name,
         std::function<std::unique_ptr<Kernel>(const Problem&)> create) {
  OpDef op;
  const size_t dot = name.rfind('.');
  op.domain = name.substr(0, dot);
  op.name = name.substr(dot + 1);
  op.cpu = {{"loops", [](const Problem&) { return Acceptance(true); }, std::move(create)}};
  registry.add(std::move(op));
}

void add(Registry& registry, const OptimizerDef& optimizer, const std::string& name,
         void (UpdateCall::*part)() const) {
  add(registry, name, [optimizer, part](const Problem& p) {
    return make_kernel([plan = PlannedUpdate(optimizer, p), part](const KernelArgs& args) {
      const auto* const state = args.in<ofsdp_run_state>(UpdateIn::kRunState);
      if (state->skip == 0 && state->stop == 0) (UpdateCall(plan, args).*part)();
    });
  });
}

// Adds an operation on a whole array (Muon's, kPutOp): run(output 0, element count, input 0 or
// null).
template <typename Run>
void add_on_array(Registry& registry, const std::string& name, const Run& run) {
  add(registry, name, [run](const Problem& p) {
    return make_kernel([run, n = p.out(0).numel(), reads = p.has_in(0)](const KernelArgs& args) {
      run(args.out<float>(0), n, reads ? args.in<float>(0) : nullptr);
    });
  });
}

// "assign" copies its gradient operand to the parameter. Devices use it to store the results of a
// model's own update (runtime/engine/device/device_rules.h).
OptimizerDef assignment() {
  OptimizerDef assign;
  assign.name = "assign";
  assign.update = [](const OptimizerSettings&, const OptimizerSpan<float>& span) {
    if (span.grad != span.param) std::copy_n(span.grad, span.count, span.param);
  };
  return assign;
}

}  // namespace

Registry update_registry(std::span<const OptimizerDef> optimizers) {
  Registry registry;
  for (const OptimizerDef& o : optimizers) {
    const auto add_part = [&](const char* part, void (UpdateCall::*call)() const) {
      add(registry, o, update_op(o.name, part), call);
    };
    add_part("advance", &UpdateCall::advance);
    if (o.direction == nullptr) continue;
    if (o.keeps_gradient()) add_part("keep", &UpdateCall::keep);
    if (o.factors()) add_part("sums", &UpdateCall::sums);
    if (o.factors()) add_part("factors", &UpdateCall::factors);
    if (o.needs_norms()) add_part("norms", &UpdateCall::norms);
    add_part("step", &UpdateCall::step);
  }
  add(registry, assignment(), update_op("assign", "advance"), &UpdateCall::advance);
  add(registry, {}, kAverageOp, &UpdateCall::average);
  add(registry, {}, kSwapOp, &UpdateCall::swap);
  add(registry, {}, kRoundOp, static_cast<void (UpdateCall::*)() const>(&UpdateCall::round));
  add_on_array(registry, update_op("muon", "normalize"),
               [](float* values, int64_t n, const float*) { normalize(values, n); });
  add_on_array(registry, update_op("muon", "scale"), [](float* values, int64_t n, const float*) {
    scale_by(values, updates::Muon::kC, n);
  });
  add_on_array(registry, kPutOp, [](float* values, int64_t n, const float* from) {
    if (from == nullptr) {
      std::fill_n(values, n, 0.0f);
    } else {
      add_zero(from, values, n);
    }
  });
  return registry;
}

}  // namespace ofsdp::kernels
