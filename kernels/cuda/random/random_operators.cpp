// RandomNormal, RandomUniform, Bernoulli and Multinomial: kernels/cuda/random/random.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/random/random.h"

namespace ofsdp::kernels::cuda {
namespace {

RandomCall call_of(const Problem& p, RandomKind kind) {
  const Attributes& a = p.attributes;
  RandomCall c;
  c.kind = kind;
  c.node_seed = seeded(p.node_seed, a.f("seed", 0.0f));
  c.a = static_cast<double>(a.f(kind == RandomKind::kNormal ? "mean" : "low", 0.0f));
  c.b = static_cast<double>(a.f(kind == RandomKind::kNormal ? "scale" : "high", 1.0f));
  c.dtype = p.out(0).dtype;
  c.numel = p.out(0).numel();
  return c;
}

// As the operators cut samples: one where they do not divide the elements.
cudaError_t run(RandomCall c, cudaStream_t stream, const ofsdp_launch& l) {
  const bool cut = l.samples > 0 && c.numel % l.samples == 0;
  c.sample_size = cut ? c.numel / l.samples : c.numel;
  c.random = reinterpret_cast<const RandomInput*>(l.numbers);
  c.sample_index = l.samples > 0 ? reinterpret_cast<const int64_t*>(l.numbers + 1) : nullptr;
  c.y = l.outputs[0];
  return draw_random(c, stream);
}

CudaImplementation drawn(const char* op, RandomKind kind) {
  return {
      op, "own", [](const Problem& p) { return p.all_plain() && has_random(p.out(0).dtype); },
      [kind](ofsdp_device&, const Problem& p) {
        return make_cuda_kernel([c = call_of(p, kind)](cudaStream_t stream, const ofsdp_launch& l) {
          return run(c, stream, l);
        });
      }};
}

CudaImplementation drawn_from(const char* op, RandomKind kind) {
  return {op, "own",
          [](const Problem& p) {
            return p.all_plain() && has_random(p.out(0).dtype) &&
                   (is_float(p.in(0).dtype) || p.in(0).dtype == DType::kFloat64);
          },
          [kind](ofsdp_device&, const Problem& p) {
            RandomCall c = call_of(p, kind);
            c.from = p.in(0).dtype;
            if (kind == RandomKind::kMultinomial) {
              c.classes = p.in(0).shape[1];
              c.draws = p.out(0).shape[1];
            }
            return make_cuda_kernel([c](cudaStream_t stream, const ofsdp_launch& l) {
              RandomCall call = c;
              call.x = l.inputs[0];
              return run(call, stream, l);
            });
          }};
}

}  // namespace

void add_random(CudaImplementations& list) {
  list.push_back(drawn("RandomNormal", RandomKind::kNormal));
  list.push_back(drawn("RandomNormalLike", RandomKind::kNormal));
  list.push_back(drawn("RandomUniform", RandomKind::kUniform));
  list.push_back(drawn("RandomUniformLike", RandomKind::kUniform));
  list.push_back(drawn_from("Bernoulli", RandomKind::kBernoulli));
  list.push_back(drawn_from("Multinomial", RandomKind::kMultinomial));
}

}  // namespace ofsdp::kernels::cuda
