// The table's optimizers: updates (optimizers.h) and LAMB's steps (lamb.h).
#include "kernels/cuda/training/optimizers.h"

#include <string>

#include "kernels/cuda/device/device_state.h"
#include "kernels/cuda/device/handles.h"
#include "kernels/cuda/training/lamb.h"

struct ofsdp_device_optimizer {
  ofsdp::kernels::cuda::DeviceUpdate update;
  ofsdp::kernels::OptimizerSettings settings;
};

namespace ofsdp::kernels::cuda {
namespace {

ofsdp_device_optimizer* make_optimizer(ofsdp_device* device, const char* name,
                                       const ofsdp_optimizer_settings* s) {
  if (const DeviceUpdate update = find_update(name); update != nullptr) {
    return new ofsdp_device_optimizer{update,
                                      {.momentum = s->momentum,
                                       .nesterov = s->nesterov != 0,
                                       .beta1 = s->beta1,
                                       .beta2 = s->beta2,
                                       .eps = s->eps,
                                       .rho = s->rho,
                                       .bias_correction = s->no_bias_correction == 0}};
  }
  device->error = std::string("no optimizer ") + name;
  return nullptr;
}

void drop_optimizer(ofsdp_device*, ofsdp_device_optimizer* optimizer) { delete optimizer; }

int32_t update(ofsdp_device* device, ofsdp_stream* stream, ofsdp_device_optimizer* optimizer,
               const ofsdp_device_update* u) {
  if (u->count == 0) return 0;
  return failed(device, optimizer->update(optimizer->settings, *u, raw(stream)), "update");
}

// LAMB is the one optimizer whose steps need norms of parameters.
int32_t add_squares(ofsdp_device* device, ofsdp_stream* stream, ofsdp_device_optimizer* optimizer,
                    const ofsdp_parameter_parts* parts) {
  return failed(device, add_lamb_squares(optimizer->settings, *parts, raw(stream)),
                "norms of parameters");
}

int32_t take_step(ofsdp_device* device, ofsdp_stream* stream, ofsdp_device_optimizer* optimizer,
                  const ofsdp_parameter_parts* parts) {
  return failed(device, take_lamb_step(optimizer->settings, *parts, raw(stream)), "a step");
}

}  // namespace

void add_optimizers(ofsdp_device_table& table) {
  table.make_optimizer = make_optimizer;
  table.drop_optimizer = drop_optimizer;
  table.update = update;
  table.add_squares = add_squares;
  table.take_step = take_step;
}

}  // namespace ofsdp::kernels::cuda
