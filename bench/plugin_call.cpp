// The C interface's cost per call: the plug-in ScaledTanh and the built-in Tanh on one
// element, where a kernel has almost nothing to do. PLUGIN in the environment names
// libscaled_tanh.so.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "plugins/loading/loader.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

void call(benchmark::State& state, const std::string& name, bool plugin) {
  const char* path = std::getenv("PLUGIN");
  auto loaded = load_plugins(
      plugin && path != nullptr ? std::vector<std::string>{path} : std::vector<std::string>{},
      false);
  if (!loaded.ok()) return state.SkipWithError(loaded.error().message().c_str());
  const size_t dot = name.rfind('.');
  const std::string domain = dot == std::string::npos ? "" : name.substr(0, dot);
  const OpDef* op = loaded->registry.find(domain, name.substr(dot + 1));
  if (op == nullptr) return state.SkipWithError("PLUGIN names no libscaled_tanh.so");
  const TensorDesc desc{DType::kFloat32, {1}};
  const Problem problem{{}, {desc}, {desc}, {}};
  auto kernel = create_kernel(*op, problem);
  if (!kernel.ok()) return state.SkipWithError(kernel.error().message().c_str());
  alignas(64) std::byte x[64] = {}, y[64] = {};
  const std::vector<TensorView> inputs = {{x, desc}}, outputs = {{y, desc}};
  const StepContext step{};
  for (auto _ : state) {
    benchmark::DoNotOptimize((*kernel)->run({inputs, outputs, nullptr, &step}).ok());
  }
}

BENCHMARK_CAPTURE(call, built_in, "Tanh", false);
BENCHMARK_CAPTURE(call, plugin, "com.example.ScaledTanh", true);

}  // namespace
}  // namespace ofsdp
