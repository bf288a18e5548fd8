// Norms of whole parameters, and the steps that depend on them, as StepLengths and OptimizerStep
// have them on the CPU: block by block, sixteen sums in turn.
#include <array>
#include <cmath>

#include "fsdp/comm/communicator.h"
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
    for (const float* state : p.states) {
      if (state == nullptr) continue;
      if (!device->holds(state + part.begin, bytes, false, "optimizer state")) return false;
    }
  }
  return device->holds(p.partials, static_cast<size_t>(partials) * sizeof(double), false,
                       "partial sums of parameters");
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
      given.optimizer.direction(given.settings,
                                {p.param + at, nullptr, states.data(), count, p.numbers->lr,
                                 part.weight_decay, p.state->optimizer_step},
                                direction.data());
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
      const auto length = static_cast<float>(given.optimizer.step_length(
          given.settings, {std::sqrt(s[0]), std::sqrt(s[1]), 0, given.p.numbers->lr,
                           given.p.state->optimizer_step}));
      for (int64_t i = 0; i < count; ++i) param[i] -= length * direction[i];
    });
  });
}

}  // namespace ofsdp::counting
