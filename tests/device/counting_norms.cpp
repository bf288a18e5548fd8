// Norms of whole parameters, and the steps that depend on them, as StepLengths and OptimizerStep
// have them on the CPU: block by block, sixteen sums in turn.
#include <array>
#include <cmath>

#include "fsdp/comm/communicator.h"
#include "kernels/optimizers/factors.h"
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {
// Keeps the call's arguments, since `parts` may be gone when the work is done.
struct GivenParts {
  ofsdp_parameter_parts p;
  std::vector<ofsdp_parameter_part> parts;
  OptimizerDef optimizer;
  OptimizerSettings settings;
};

namespace {

bool holds_floats(CountingDevice* device, const float* values, int64_t count, const char* what) {
  return device->holds(values, static_cast<size_t>(count) * sizeof(float), false, what);
}

MatrixSpan span_of(const ofsdp_parameter_part& part) {
  const MatrixShape shape{part.numel / (part.rows * part.columns), part.rows, part.columns};
  return {shape, part.first, part.count};
}

// The states and the gradient of an optimizer that keeps it.
bool holds_kept(CountingDevice* device, const ofsdp_parameter_parts& p,
                const ofsdp_parameter_part& part) {
  if (p.gradient == nullptr) return true;
  if (!holds_floats(device, p.gradient + part.begin, part.count, "a kept gradient")) return false;
  if (part.columns == 0) {
    if (part.states[0] == nullptr) return true;  // the gradient is the direction
    return holds_floats(device, part.states[0] + part.begin, part.count, "optimizer state");
  }
  const MatrixSpan span = span_of(part);
  const int64_t first = span.first_matrix(), matrices = span.last_matrix() - first;
  return holds_floats(device, part.states[0] + first * part.rows, matrices * part.rows,
                      "factors of rows") &&
         holds_floats(device, part.states[1] + first * part.columns, matrices * part.columns,
                      "factors of columns") &&
         holds_floats(device, part.means + first, matrices, "means of factors");
}

bool holds_parts(CountingDevice* device, const ofsdp_parameter_parts& p) {
  int64_t partials = 0;
  for (int64_t i = 0; i < p.num_parts; ++i) {
    const ofsdp_parameter_part& part = p.parts[i];
    const size_t bytes = static_cast<size_t>(part.count) * sizeof(float);
    partials += 2 * (part.count / kReduceBlock + 1);
    const double* squares = p.squares + 2 * part.parameter;
    if (!device->holds(p.param + part.begin, bytes, false, "a parameter") ||
        !device->holds(squares, 2 * sizeof(double), false, "squares of a parameter")) {
      return false;
    }
    if (!holds_kept(device, p, part)) return false;
    for (const float* state : p.states) {
      if (state == nullptr) continue;
      if (!device->holds(state + part.begin, bytes, false, "optimizer state")) return false;
    }
  }
  return device->holds(p.partials, static_cast<size_t>(partials) * sizeof(double), false,
                       "partial sums of parameters");
}

// Elements [at, at + count) of the shard, matrix by matrix.
void factored(const ofsdp_parameter_parts& p, const ofsdp_parameter_part& part, int64_t at,
              int64_t count, float* direction) {
  const MatrixShape shape = span_of(part).shape;
  const int64_t first = part.first + at - part.begin;
  for (int64_t done = 0; done < count;) {
    const int64_t matrix = (first + done) / shape.size();
    const int64_t from = first + done - matrix * shape.size();
    const int64_t n = std::min(count - done, shape.size() - from);
    factored_direction(
        {shape, from, n}, p.gradient + at + done, part.states[0] + matrix * shape.rows,
        part.states[1] + matrix * shape.columns, part.means[matrix], direction + done);
    done += n;
  }
}

// `see(part, parameter, direction, count)` of each block.
template <typename See>
void visit(const GivenParts& given, const See& see) {
  const ofsdp_parameter_parts& p = given.p;
  std::array<float, kReduceBlock> direction;
  for (const ofsdp_parameter_part& part : given.parts) {
    for (int64_t done = 0; done < part.count; done += kReduceBlock) {
      const int64_t at = part.begin + done, count = std::min(kReduceBlock, part.count - done);
      std::array<float*, OFSDP_MOST_OPTIMIZER_STATES> states{};
      for (size_t i = 0; i < states.size(); ++i) {
        if (p.states[i] != nullptr) states[i] = p.states[i] + at;
      }
      if (given.optimizer.traits.orthogonal) {
        see(part, p.param + at, p.gradient + at, count);
        continue;
      }
      const float* const gradient = p.gradient == nullptr ? nullptr : p.gradient + at;
      if (gradient != nullptr) states[0] = const_cast<float*>(part.states[0]) + at;
      if (part.columns > 0) {
        factored(p, part, at, count, direction.data());
      } else {
        given.optimizer.direction(given.settings,
                                  {p.param + at, gradient, states.data(), count, p.numbers->lr,
                                   part.weight_decay, p.state->optimizer_step},
                                  direction.data());
      }
      see(part, p.param + at, direction.data(), count);
    }
  }
}

}  // namespace

Status CountingDevice::put_parts(ofsdp_stream* stream, ofsdp_device_optimizer* optimizer,
                                 const ofsdp_parameter_parts* p, void (*work)(const GivenParts&)) {
  const std::lock_guard lock(mutex);
  if (!holds_parts(this, *p)) return refused();
  GivenParts given{
      *p, {p->parts, p->parts + p->num_parts}, *optimizer->definition, optimizer->settings};
  return put(stream, [given = std::move(given), work] {
    if (given.p.state->skip == 0 && given.p.state->stop == 0) work(given);
    return Status{};
  });
}

Status CountingDevice::add_squares(ofsdp_stream* stream, ofsdp_device_optimizer* optimizer,
                                   const ofsdp_parameter_parts* p) {
  return put_parts(stream, optimizer, p, [](const GivenParts& given) {
    visit(given, [&](const ofsdp_parameter_part& part, const float* param, const float* direction,
                     int64_t count) {
      given.p.squares[2 * part.parameter] += squares(param, count);
      given.p.squares[2 * part.parameter + 1] += squares(direction, count);
    });
  });
}

Status CountingDevice::take_step(ofsdp_stream* stream, ofsdp_device_optimizer* optimizer,
                                 const ofsdp_parameter_parts* p) {
  return put_parts(stream, optimizer, p, [](const GivenParts& given) {
    visit(given, [&](const ofsdp_parameter_part& part, float* param, const float* direction,
                     int64_t count) {
      const double* s = given.p.squares + 2 * part.parameter;
      const bool norms = !given.optimizer.traits.orthogonal;
      const auto length = static_cast<float>(given.optimizer.step_length(
          given.settings, {norms ? std::sqrt(s[0]) : 0, norms ? std::sqrt(s[1]) : 0, part.numel,
                           given.p.numbers->lr, given.p.state->optimizer_step, part.adjust}));
      const bool decays = given.p.gradient != nullptr && part.weight_decay != 0;
      const auto keep =
          decays ? static_cast<float>(1 - given.p.numbers->lr * part.weight_decay) : 1.0f;
      for (int64_t i = 0; i < count; ++i) param[i] = param[i] * keep - length * direction[i];
    });
  });
}

Status CountingDevice::sum_matrix_squares(ofsdp_stream* stream, const ofsdp_matrix_squares* given) {
  const std::lock_guard lock(mutex);
  const ofsdp_matrix_squares m = *given;
  const int64_t size = m.rows * m.columns, first = m.first / size;
  const int64_t matrices = (m.first + m.count + size - 1) / size - first;
  if (!holds_floats(this, m.gradient, m.count, "a gradient") ||
      !holds_floats(this, m.row_sums + first * m.rows, matrices * m.rows, "sums of rows") ||
      !holds_floats(this, m.column_sums + first * m.columns, matrices * m.columns,
                    "sums of columns")) {
    return refused();
  }
  return put(stream, [=] {
    sums_of_squares({{first + matrices, m.rows, m.columns}, m.first, m.count}, m.gradient,
                    m.row_sums, m.column_sums);
    return Status{};
  });
}

Status CountingDevice::advance_factors(ofsdp_stream* stream, const ofsdp_factor_advance* given) {
  const std::lock_guard lock(mutex);
  const ofsdp_factor_advance a = *given;
  if (!holds_floats(this, a.factors, a.count, "factors") ||
      !holds_floats(this, a.sums, a.count, "sums of squares")) {
    return refused();
  }
  return put(stream, [=] {
    if (a.state->skip != 0 || a.state->stop != 0) return Status{};
    kernels::advance_factors(a.factors, a.sums, a.count, a.length, a.state->optimizer_step);
    return Status{};
  });
}

Status CountingDevice::mean_rows(ofsdp_stream* stream, const float* factors, int64_t rows,
                                 int64_t matrices, float* means) {
  const std::lock_guard lock(mutex);
  if (!holds_floats(this, factors, rows * matrices, "factors") ||
      !holds_floats(this, means, matrices, "means of factors")) {
    return refused();
  }
  return put(stream, [=] {
    for (int64_t m = 0; m < matrices; ++m) means[m] = mean_of_rows(factors + m * rows, rows);
    return Status{};
  });
}

Status CountingDevice::normalize(ofsdp_stream* stream, float* values, int64_t count, double least,
                                 double* scratch) {
  const std::lock_guard lock(mutex);
  const auto room = static_cast<size_t>(count / kReduceBlock + 2) * sizeof(double);
  if (!holds_floats(this, values, count, "a matrix") ||
      !holds(scratch, room, false, "scratch of a norm")) {
    return refused();
  }
  return put(stream, [=] {
    std::fill_n(scratch, room / sizeof(double), -1.0);
    const auto by = static_cast<float>(std::max(std::sqrt(squares(values, count)), least));
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] / by;
    return Status{};
  });
}

Status CountingDevice::scale(ofsdp_stream* stream, float* values, int64_t count, float by) {
  const std::lock_guard lock(mutex);
  if (!holds_floats(this, values, count, "a matrix")) return refused();
  return put(stream, [=] {
    for (int64_t i = 0; i < count; ++i) values[i] *= by;
    return Status{};
  });
}

}  // namespace ofsdp::counting
