// A step's arithmetic outside nodes: gradients, norms, clipping, optimizers.
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/training/training.h"
#include "tests/races/table.h"

namespace ofsdp::races {
namespace {

using namespace kernels::cuda;

constexpr int64_t kCount = 9000;

constexpr const char* kOptimizers[] = {
#define OPTIMIZER(name, ...) #name,
#include "kernels/optimizers/optimizers.inc"
    "assign", "muon_direction"};

int32_t number(DType dtype) { return static_cast<int32_t>(dtype); }

// The state after some updates.
ofsdp_run_state* state_of(Buffers& m) {
  auto* const s = m.blank<ofsdp_run_state>(1);
  s->loss_scale = s->scale_used = 1;
  s->optimizer_step = 3;
  s->gradient_factor = 0.5f;
  return s;
}
ofsdp_step_numbers* numbers_of(Buffers& m) {
  auto* const n = m.blank<ofsdp_step_numbers>(1);
  n->lr = 0.01;
  n->loss_shares[0] = 1;
  return n;
}

void add_steps(Table& table) {
  table.row("numbers of an update", [](Buffers& m) {
    ofsdp_run_state* const s = state_of(m);
    OFSDP_CUDA_TRY(begin_update(s, numbers_of(m), true, true, nullptr));
    OFSDP_CUDA_TRY(note_loss(s, 0, m.floats(1), true, nullptr));
    OFSDP_CUDA_TRY(clip(s, 1, true, nullptr));
    return mark(m.blank<int64_t>(1), 7, nullptr);
  });
  table.row("exact squares", [](Buffers& m) {
    auto* const sum = m.blank<ofsdp_exact_sum>(1);
    auto* const limbs = m.blank<double>(OFSDP_EXACT_LIMBS);
    OFSDP_CUDA_TRY(add_exact_squares(m.floats(kCount), kCount, sum, nullptr));
    OFSDP_CUDA_TRY(take_exact_sum(sum, limbs, nullptr));
    return exact_norm(limbs, m.blank<double>(1), nullptr);
  });
}

void add_gradients(Table& table, DType dtype) {
  table.row(named("gradients", dtype), [=](Buffers& m) {
    void* const g = m.floats(dtype, kCount);
    float* const sum = m.floats(kCount);
    OFSDP_CUDA_TRY(convert(g, number(dtype), m.floats(DType::kFloat16, kCount),
                           number(DType::kFloat16), kCount, nullptr));
    OFSDP_CUDA_TRY(add_onto(g, number(dtype), sum, kCount, nullptr));
    OFSDP_CUDA_TRY(round_values(sum, number(DType::kBFloat16), kCount, nullptr));
    ofsdp_reduce r{};
    r.gradient = {g, number(dtype), number(DType::kFloat32), sum};
    r.dst = sum;
    r.count = r.norm_count = kCount;
    r.partials = m.blank<double>(kCount / 4096 + 2);
    r.state = state_of(m);
    return reduce_gradient(r, nullptr);
  });
}

void add_optimizer(Table& table, const char* name, DType dtype) {
  table.row(named("optimizer", name, dtype), [=](Buffers& m) {
    ofsdp_device_update u{};
    u.gradient = {m.floats(dtype, kCount), number(dtype), number(DType::kFloat32), nullptr};
    u.param = m.floats(kCount);
    u.states[0] = m.positive(kCount);
    u.states[1] = m.positive(kCount);
    u.count = kCount;
    u.scaled = 1;
    u.state = state_of(m);
    u.numbers = numbers_of(m);
    return find_update(name)({}, u, nullptr);
  });
}

// A part that ends inside a block.
void add_encoded(Table& table, kernels::StateForm form, const char* name) {
  table.row(named("optimizer with states", name), [=](Buffers& m) {
    ofsdp_device_update u{};
    u.gradient = {m.floats(kCount), number(DType::kFloat32), number(DType::kFloat32), nullptr};
    u.param = m.floats(kCount);
    u.count = kCount;
    u.state = state_of(m);
    u.numbers = numbers_of(m);
    EncodedStates states{{}, 7, 3, 0};
    for (kernels::StoredState& state : states.states) {
      state = kernels::stored_state(form, m.blank<std::byte>(2 * kCount + 1024), kCount);
    }
    return find_encoded_update("adamw")({}, u, states, nullptr);
  });
}

void add_average(Table& table) {
  table.row("average", [](Buffers& m) {
    float *const param = m.floats(kCount), *const average = m.floats(kCount);
    OFSDP_CUDA_TRY(follow_average({param, average, kCount, 1, 0.9, state_of(m)}, nullptr));
    return swap_arrays(param, average, kCount, nullptr);
  });
}

void add_lamb(Table& table) {
  table.row("lamb", [](Buffers& m) {
    const ofsdp_parameter_part parts[] = {{0, 8500, 0, 0.1}, {8500, 500, 1, 0}};
    const ofsdp_parameter_parts p{m.floats(kCount),
                                  {m.floats(kCount), m.positive(kCount)},
                                  parts,
                                  2,
                                  m.blank<double>(4),
                                  m.blank<double>(16),
                                  state_of(m),
                                  numbers_of(m)};
    OFSDP_CUDA_TRY(add_lamb_squares({}, p, nullptr));
    return take_lamb_step({}, p, nullptr);
  });
}

// Two matrices with a missing part at both ends, and a parameter with one axis.
void add_adafactor(Table& table) {
  table.row("adafactor", [](Buffers& m) {
    constexpr int64_t kRows = 40, kColumns = 70, kFirst = 33, kMatrices = 2;
    constexpr int64_t kNumel = kMatrices * kRows * kColumns, kHeld = kNumel - 2 * kFirst;
    float *const gradient = m.floats(kCount), *const means = m.positive(kMatrices);
    float *const rows = m.positive(kMatrices * kRows), *const columns = m.positive(2 * kColumns);
    float *const row_sums = m.floats(kMatrices * kRows), *const sums = m.floats(2 * kColumns);
    const ofsdp_run_state* const state = state_of(m);
    const ofsdp_matrix_squares squares{kRows, kColumns, kFirst, kHeld, gradient, row_sums, sums};
    OFSDP_CUDA_TRY(sum_matrix_squares(squares, nullptr));
    OFSDP_CUDA_TRY(advance_factors({rows, row_sums, kMatrices * kRows, kColumns, state}, nullptr));
    OFSDP_CUDA_TRY(mean_rows(rows, kRows, kMatrices, means, nullptr));
    ofsdp_parameter_part parts[2] = {{0, kHeld, 0, 0.1}, {kHeld, kCount - kHeld, 1, 0}};
    parts[0].numel = kNumel;
    parts[0].first = kFirst;
    parts[0].rows = kRows;
    parts[0].columns = kColumns;
    parts[0].states[0] = rows;
    parts[0].states[1] = columns;
    parts[0].means = means;
    parts[1].numel = kCount - kHeld;
    parts[1].states[0] = m.positive(kCount);
    ofsdp_parameter_parts p{m.floats(kCount),    {},    parts,        2, m.blank<double>(4),
                            m.blank<double>(16), state, numbers_of(m)};
    p.gradient = gradient;
    OFSDP_CUDA_TRY(add_adafactor_squares({}, p, nullptr));
    return take_adafactor_step({}, p, nullptr);
  });
}

void add_muon(Table& table) {
  table.row("muon", [](Buffers& m) {
    float* const values = m.floats(kCount);
    OFSDP_CUDA_TRY(normalize(values, kCount, 1e-7, m.blank<double>(kCount / 4096 + 2), nullptr));
    OFSDP_CUDA_TRY(scale(values, kCount, 2, nullptr));
    const ofsdp_parameter_part part{0, kCount, 0, 0.1};
    ofsdp_parameter_parts p{m.floats(kCount), {},      &part,       1,
                            nullptr,          nullptr, state_of(m), numbers_of(m)};
    p.gradient = values;
    return take_muon_step({}, p, nullptr);
  });
}

void add_training(Table& table, Training kind, const char* name) {
  table.row(named("training operator", name), [=](Buffers& m) {
    float *const x = m.floats(kCount), *const a = m.positive(kCount), *const b = m.positive(kCount);
    const TrainingTensors t{x, m.floats(kCount), {a, b}, x, {a, b}, kCount};
    return training_update(kind, {0.1, 0, 0.9, 0.999, 1e-6, 0, true}, m.floats(1), m.whole(1, 9), t,
                           nullptr);
  });
}

}  // namespace

void add_training_rows(Table& table) {
  add_steps(table);
  for (const DType dtype : table.floats()) {
    add_gradients(table, dtype);
    for (const char* name : kOptimizers) add_optimizer(table, name, dtype);
  }
  add_encoded(table, kernels::StateForm::kBFloat16, "bfloat16");
  add_encoded(table, kernels::StateForm::kUnsigned8, "int8");
  add_average(table);
  add_lamb(table);
  add_adafactor(table);
  add_muon(table);
  add_training(table, Training::kAdam, "Adam");
  add_training(table, Training::kAdagrad, "Adagrad");
  add_training(table, Training::kMomentum, "Momentum");
}

}  // namespace ofsdp::races
