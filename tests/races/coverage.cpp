#include "tests/races/coverage.h"

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/races/code_names.h"

namespace ofsdp::races {
namespace {

// Kernels that no row launches: none is in the plan of a training step for BERT, GPT-2, the MNIST
// sample or a ResNet.
struct Exception {
  const char* kernel;  // "FAMILY/FILE.cu name", or a whole file: "FAMILY/FILE.cu"
  const char* reason;
};
constexpr Exception kExceptions[] = {
    {"recurrent/recurrent.cu",
     "of RNN, GRU and LSTM: a thread an element; group_reduce alone shares memory"},
    {"indexing/axis_map.cu", "of Resize and Pad: a thread an element, nothing shared"},
    {"indexing/scatter.cu gather_kernel", "GatherElements: a thread an element, nothing shared"},
    {"indexing/scatter.cu rows_kernel", "of ScatterElements: a thread an index, nothing shared"},
    {"indexing/scatter.cu moved_kernel", "of sliced scatters: a thread an index, nothing shared"},
    {"indexing/found.cu indices_kernel", "of sequences: a thread an element, nothing shared"},
    {"indexing/found.cu require_kernel", "of sequences: one thread"},
    {"indexing/found.cu reverse_kernel", "ReverseSequence: a thread an element, nothing shared"},
    {"indexing/found.cu cache_kernel", "TensorScatter: a thread an element, nothing shared"},
    {"indexing/top_k.cu mark_kernel", "Hardmax: a thread an element, nothing shared"},
    {"matmul/product_kernels.cu",
     "padded copies, trials of products, Einsum by loops: nothing shared, sums by atomics"},
    {"pointwise/bias_split_gelu.cu",
     "its launcher is an operator; a thread a pack, nothing shared"},
};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// "norm/norm.cu forward_held", ...
std::set<std::string> declared(const std::filesystem::path& folder) {
  static const std::regex kKernel(
      R"((?:OFSDP_CUDA_KERNEL|__global__\s+void(?:\s+__launch_bounds__\([^)]*\))?)\s+(\w+)\()");
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cu") continue;
    const std::string text = text_of(entry.path());
    const std::string file = entry.path().parent_path().filename() / entry.path().filename();
    for (std::sregex_iterator at(text.begin(), text.end(), kKernel), end; at != end; ++at) {
      names.insert(file + ' ' + at->str(1));
    }
  }
  return names;
}

std::set<std::string> names_of(const std::set<const void*>& launched) {
  std::set<uint32_t> addresses;
  for (const void* kernel : launched) {
    addresses.insert(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(kernel)));
  }
  std::set<std::string> names;
  CodeNames code;
  add_code_names(addresses, code);
  for (const auto& [address, name] : code) {
    names.insert(name.file + ' ' + name.function);
  }
  return names;
}

bool covers(const Exception& e, const std::string& kernel) {
  return kernel == e.kernel || kernel.starts_with(std::string(e.kernel) + ' ');
}

}  // namespace

std::vector<std::string> coverage_faults(const std::string& source,
                                         const std::set<const void*>& launched) {
  const std::set<std::string> ran = names_of(launched);
  std::vector<std::string> faults;
  std::set<const char*> used;
  const std::set<std::string> all = declared(std::filesystem::path(source) / "kernels/cuda");
  if (all.empty()) faults.push_back(source + ": no kernels found");
  for (const std::string& kernel : all) {
    if (ran.contains(kernel)) continue;
    const Exception* excepted = nullptr;
    for (const Exception& e : kExceptions) {
      if (covers(e, kernel)) excepted = &e;
    }
    if (excepted == nullptr) {
      faults.push_back(kernel + ": no row of tests/races launches this kernel");
    } else {
      used.insert(excepted->kernel);
    }
  }
  for (const Exception& e : kExceptions) {
    if (!used.contains(e.kernel)) faults.push_back(std::string(e.kernel) + ": is not left out");
  }
  return faults;
}

}  // namespace ofsdp::races
