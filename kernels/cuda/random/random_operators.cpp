// Dropout and its gradient, RandomNormal, RandomUniform, Bernoulli and Multinomial (random.h).
#include <cstddef>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/random/random.h"

namespace ofsdp::kernels::cuda {
namespace {

// ofsdp_step_numbers begins with a RandomInput; the sample indices follow it.
static_assert(offsetof(ofsdp_step_numbers, seed) == offsetof(RandomInput, seed) &&
              offsetof(ofsdp_step_numbers, step) == offsetof(RandomInput, step));

const RandomInput* random_of(const Launch& l) {
  return reinterpret_cast<const RandomInput*>(l.numbers);
}
const int64_t* sample_index_of(const Launch& l) {
  return l.samples > 0 ? reinterpret_cast<const int64_t*>(l.numbers + 1) : nullptr;
}
// One sample if the batch does not divide the elements, as in the operators.
int64_t samples_of(const Launch& l, int64_t numel) {
  return l.samples > 0 && numel % l.samples == 0 ? l.samples : 1;
}

Acceptance accepts_dropout(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype), known(p, 1), known(p, 2)});
}

std::unique_ptr<CudaKernel> create_dropout(DeviceState&, const Problem& p) {
  const int64_t numel = p.in(0).numel();
  if (known_scalar(p, 2, 0) == 0) {  // inference: y = x, mask all true
    return make_cuda_kernel(
        [numel, bytes = p.out(0).bytes()](cudaStream_t stream, const Launch& l) {
          if (l.out(1) != nullptr) {
            OFSDP_CUDA_TRY(cudaMemsetAsync(l.out(1), 1, static_cast<size_t>(numel), stream));
          }
          return copy_bytes(l.out(0), l.in(0), bytes, stream);
        });
  }
  DropoutCall c;
  c.dtype = p.in(0).dtype;
  c.node_seed = p.node_seed;
  c.ratio = known_scalar(p, 1, 0.5);
  return make_cuda_kernel([c, numel](cudaStream_t stream, const Launch& l) mutable {
    c.samples = samples_of(l, numel);
    c.elements = numel / c.samples;
    c.random = random_of(l);
    c.sample_index = sample_index_of(l);
    c.x = l.in(0);
    c.y = l.out(0);
    c.mask = l.out<bool>(1);
    return dropout(c, stream);
  });
}

std::unique_ptr<CudaKernel> create_dropout_grad(DeviceState&, const Problem& p) {
  return make_cuda_kernel([dtype = p.in(0).dtype, n = p.in(0).numel(),
                           ratio = static_cast<double>(p.attributes.f("ratio", 0.5f))](
                              cudaStream_t stream, const Launch& l) {
    return dropout_grad(dtype, l.in(0), l.in<bool>(1), l.out(0), n, ratio, stream);
  });
}

// Bernoulli and Multinomial read x; the others have no input.
CudaImplementation drawn(const char* op, RandomKind kind) {
  const bool from = kind == RandomKind::kBernoulli || kind == RandomKind::kMultinomial;
  return {op, "own",
          [from](const Problem& p) {
            return accept({plain(p), supported(has_random(p.out(0).dtype)),
                           supported(!from || is_32_or_16_bit_float(p.in(0).dtype) ||
                                     p.in(0).dtype == DType::kFloat64)});
          },
          [kind, from](DeviceState&, const Problem& p) {
            const Attributes& a = p.attributes;
            const bool normal = kind == RandomKind::kNormal;
            RandomCall c;
            c.kind = kind;
            c.node_seed = seeded(p.node_seed, a.f("seed", 0.0f));
            c.a = static_cast<double>(a.f(normal ? "mean" : "low", 0.0f));
            c.b = static_cast<double>(a.f(normal ? "scale" : "high", 1.0f));
            c.dtype = p.out(0).dtype;
            c.numel = p.out(0).numel();
            if (from) c.from = p.in(0).dtype;
            if (kind == RandomKind::kMultinomial) {
              c.classes = p.in(0).shape[1];
              c.draws = p.out(0).shape[1];
            }
            return make_cuda_kernel([c, from](cudaStream_t stream, const Launch& l) mutable {
              c.x = from ? l.in(0) : nullptr;
              c.y = l.out(0);
              c.sample_size = c.numel / samples_of(l, c.numel);
              c.random = random_of(l);
              c.sample_index = sample_index_of(l);
              return draw_random(c, stream);
            });
          }};
}

}  // namespace

void add_random(CudaImplementations& list) {
  list.insert(list.end(), {{"Dropout", "own", accepts_dropout, create_dropout},
                           {"ofsdp.DropoutGrad", "own", accepts_plain_floats, create_dropout_grad},
                           drawn("RandomNormal", RandomKind::kNormal),
                           drawn("RandomNormalLike", RandomKind::kNormal),
                           drawn("RandomUniform", RandomKind::kUniform),
                           drawn("RandomUniformLike", RandomKind::kUniform),
                           drawn("Bernoulli", RandomKind::kBernoulli),
                           drawn("Multinomial", RandomKind::kMultinomial)});
}

}  // namespace ofsdp::kernels::cuda
