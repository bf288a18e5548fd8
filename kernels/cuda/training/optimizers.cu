// The optimizers of kernels/optimizers/, in one pass over the shard: gradient (of any float type,
// scaled by the clip factor), parameter and states are read once and written once. Formulas and
// order of operations are those files'; what depends on the step is computed in double by one thread
// a block, since only the device knows how many updates were skipped.
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/cuda/device/device_state.h"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/training/lamb.h"

namespace ofsdp::kernels::cuda {
namespace {

// Of LAMB the averages alone: lamb.h has what follows. kAssign writes what it gets: results that were
// computed elsewhere.
enum class Kind {
  kAdam,
  kAdamW,
  kAdamWTransformers,
  kSgd,
  kLion,
  kAdagrad,
  kAdadelta,
  kLamb,
  kAssign
};

struct Factors {
  float a, b, c, d, e, f, g;
  bool decay, flag;
};

__device__ inline float f32(double v) { return static_cast<float>(v); }

// adam_update.cpp: weight1, beta1, beta2, weight2, root_correction2, minus_step, keep.
__device__ Factors adam_factors(const ofsdp_optimizer_settings& s, double lr, double decay,
                                int64_t step) {
  const auto t = static_cast<double>(step);
  const float weight1 = f32(1 - s.beta1);
  const bool corrects = s.no_bias_correction == 0;
  return {weight1,
          1 - weight1,
          f32(s.beta2),
          f32(1 - s.beta2),
          corrects ? f32(sqrt(1 - pow(s.beta2, t))) : 1.0f,
          f32(-(lr / (corrects ? 1 - pow(s.beta1, t) : 1.0))),
          f32(1 - lr * decay),
          decay != 0,
          weight1 >= 0.5f};
}

// adamw_transformers.cpp: beta1, weight1, beta2, weight2, minus_step, decay.
__device__ Factors transformers_factors(const ofsdp_optimizer_settings& s, double lr, double decay,
                                        int64_t step) {
  const auto t = static_cast<double>(step);
  const double size =
      s.no_bias_correction != 0 ? lr : lr * sqrt(1 - pow(s.beta2, t)) / (1 - pow(s.beta1, t));
  Factors f{};
  f.a = f32(s.beta1);
  f.b = f32(1 - s.beta1);
  f.c = f32(s.beta2);
  f.d = f32(1 - s.beta2);
  f.e = f32(-size);
  f.f = f32(lr * decay);
  return f;
}

template <Kind kind>
__device__ Factors factors(const ofsdp_optimizer_settings& s, double lr, double decay,
                           int64_t step) {
  if (kind == Kind::kAdam || kind == Kind::kAdamW) return adam_factors(s, lr, decay, step);
  if (kind == Kind::kAdamWTransformers) return transformers_factors(s, lr, decay, step);
  Factors f{};
  f.decay = decay != 0;
  f.flag = step == 1;
  f.a = f32(kind == Kind::kLion ? lr : -lr);
  if (kind == Kind::kSgd) f.b = f32(s.momentum);
  if (kind == Kind::kLamb) f = {f32(s.beta1), f32(1 - s.beta1), f32(s.beta2), f32(1 - s.beta2)};
  if (kind == Kind::kLion) {
    f.b = f32(1 - lr * decay);
    f.c = f32(s.beta1);
    f.d = f32(1 - s.beta1);
    f.e = f32(s.beta2);
    f.f = f32(1 - s.beta2);
  }
  if (kind == Kind::kAdadelta) {
    f.b = f32(s.rho);
    f.c = f32(1 - s.rho);
  }
  return f;
}

struct Cell {
  float p, s0, s1;
};

template <Kind kind>
__device__ void step(Cell& x, float g, const Factors& f, const ofsdp_optimizer_settings& s,
                     float decay, bool momentum) {
  const float eps = f32(s.eps);
  if (kind == Kind::kAdam || kind == Kind::kAdamW) {
    const float p = kind == Kind::kAdamW && f.decay ? x.p * f.g : x.p;
    if (kind == Kind::kAdam && f.decay) g = g + decay * p;
    x.s0 = f.flag ? g - (g - x.s0) * f.b : x.s0 + f.a * (g - x.s0);
    x.s1 = x.s1 * f.c + f.d * g * g;
    x.p = p + f.f * x.s0 / (sqrtf(x.s1) / f.e + eps);
    return;
  }
  if (kind == Kind::kAssign) {
    x.p = g;
    return;
  }
  if (kind == Kind::kAdamWTransformers) {
    x.s0 = x.s0 * f.a + f.b * g;
    x.s1 = x.s1 * f.c + f.d * g * g;
    const float p = x.p + f.e * x.s0 / (sqrtf(x.s1) + eps);
    x.p = p - f.f * p;
    return;
  }
  if (kind == Kind::kLion) {
    const float c = f.c * x.s0 + f.d * g;
    const float by = c > 0 ? f.a : c < 0 ? -f.a : 0.0f;
    x.p = x.p * f.b - by;
    x.s0 = f.e * x.s0 + f.f * g;
    return;
  }
  if (kind == Kind::kLamb) {
    x.s0 = f.a * x.s0 + f.b * g;
    x.s1 = f.c * x.s1 + f.d * g * g;
    return;
  }
  if (f.decay) g = g + decay * x.p;
  if (kind == Kind::kSgd) {
    if (momentum) {
      x.s0 = f.flag ? g : f.b * x.s0 + g;
      g = s.nesterov != 0 ? g + f.b * x.s0 : x.s0;
    }
    x.p += f.a * g;
  } else if (kind == Kind::kAdagrad) {
    x.s0 = x.s0 + g * g;
    x.p += f.a * g / (sqrtf(x.s0) + eps);
  } else {
    x.s0 = x.s0 * f.b + f.c * g * g;
    const float delta = sqrtf(x.s1 + eps) / sqrtf(x.s0 + eps) * g;
    x.s1 = x.s1 * f.b + f.c * delta * delta;
    x.p += f.a * delta;
  }
}

template <Kind kind, typename From>
__global__ void update_kernel(ofsdp_device_update u, ofsdp_optimizer_settings s) {
  if (u.state->skip != 0 || u.state->stop != 0) return;
  __shared__ Factors f;
  if (threadIdx.x == 0) {
    f = factors<kind>(s, u.numbers->lr, u.weight_decay, u.state->optimizer_step);
  }
  __syncthreads();
  const float scale = u.state->gradient_factor;
  OFSDP_CUDA_LOOP(i, u.count) {
    float g = gradient_at<From>(u.gradient, i);
    if (u.scaled != 0) g = g * scale;
    Cell x{kind == Kind::kLamb ? 0 : u.param[i], u.states[0] == nullptr ? 0 : u.states[0][i],
           u.states[1] == nullptr ? 0 : u.states[1][i]};
    step<kind>(x, g, f, s, f32(u.weight_decay), u.states[0] != nullptr);
    if (kind != Kind::kLamb) u.param[i] = x.p;
    if (u.states[0] != nullptr) u.states[0][i] = x.s0;
    if (u.states[1] != nullptr) u.states[1][i] = x.s1;
  }
}

template <Kind kind>
int32_t start(ofsdp_device* device, cudaStream_t stream, const ofsdp_optimizer_settings& settings,
              const ofsdp_device_update& u) {
  const bool known = with_float_type(u.gradient.dtype, [&](auto from) {
    update_kernel<kind, decltype(from)><<<blocks(u.count), kThreads, 0, stream>>>(u, settings);
  });
  return known ? launched(device, "update") : unknown_type(device, "update");
}

struct Named {
  const char* name;
  int32_t (*start)(ofsdp_device*, cudaStream_t, const ofsdp_optimizer_settings&,
                   const ofsdp_device_update&);
};
constexpr Named kOptimizers[] = {{"adamw", start<Kind::kAdamW>},
                                 {"adam", start<Kind::kAdam>},
                                 {"sgd", start<Kind::kSgd>},
                                 {"lion", start<Kind::kLion>},
                                 {"adagrad", start<Kind::kAdagrad>},
                                 {"adadelta", start<Kind::kAdadelta>},
                                 {"adamw_transformers", start<Kind::kAdamWTransformers>},
                                 {"lamb", start<Kind::kLamb>},
                                 {"assign", start<Kind::kAssign>}};

}  // namespace
}  // namespace ofsdp::kernels::cuda

struct ofsdp_device_optimizer {
  const ofsdp::kernels::cuda::Named* kind;
  ofsdp_optimizer_settings settings;
};

namespace ofsdp::kernels::cuda {
namespace {

ofsdp_device_optimizer* make_optimizer(ofsdp_device* device, const char* name,
                                       const ofsdp_optimizer_settings* settings) {
  for (const Named& kind : kOptimizers) {
    if (std::strcmp(kind.name, name) == 0) return new ofsdp_device_optimizer{&kind, *settings};
  }
  device->error = std::string("no optimizer ") + name;
  return nullptr;
}

void drop_optimizer(ofsdp_device*, ofsdp_device_optimizer* optimizer) { delete optimizer; }

int32_t update(ofsdp_device* device, ofsdp_stream* stream, ofsdp_device_optimizer* optimizer,
               const ofsdp_device_update* u) {
  if (u->count == 0) return 0;
  return optimizer->kind->start(device, raw(stream), optimizer->settings, *u);
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
