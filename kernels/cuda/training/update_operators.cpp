// The update operations of kernels/core/update.h: rows of an update table as calls of the launchers
// in arithmetic.h. Elementwise optimizers need nothing here; optimizers of whole parameters or
// matrices have a row in add_updates for each part of their own.
#include "kernels/core/update.h"
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/optimizers/parameter_updates.h"

namespace ofsdp::kernels::cuda {
namespace {

int32_t number(DType dtype) { return static_cast<int32_t>(dtype); }

// The plan of an operation: numbers and rows.
struct PlannedRows {
  explicit PlannedRows(const Problem& p) : spec(update_spec(p)), rows(update_rows(p)) {
    if (p.has_in(UpdateIn::kGradient)) gradient = p.in(UpdateIn::kGradient).dtype;
    if (p.has_out(UpdateOut::kCopy)) copy = p.out(UpdateOut::kCopy).dtype;
    numel = p.out(UpdateOut::kParam).numel();
  }
  UpdateSpec spec;
  std::vector<UpdateRow> rows;
  DType gradient = DType::kFloat32, copy = DType::kUndefined;
  int64_t numel = 0;  // of the shard
};

const ofsdp_run_state* run_state(const Launch& l) {
  return l.in<const ofsdp_run_state>(UpdateIn::kRunState);
}

float* state_at(const Launch& l, const UpdateRow& row, int32_t i) {
  return l.out<float>(UpdateOut::kStates + static_cast<size_t>(row.states[i])) + row.shifts[i];
}

ofsdp_device_update update_of(const PlannedRows& p, const Launch& l, const UpdateRow& row) {
  const auto at = static_cast<size_t>(row.begin);
  const auto* const onto = l.in<const float>(UpdateIn::kOnto);
  ofsdp_device_update u{};
  u.gradient = {l.in<const std::byte>(UpdateIn::kGradient) + at * dtype_size(p.gradient),
                number(p.gradient), number(p.spec.round_to),
                onto == nullptr ? nullptr : onto + row.begin};
  u.param = l.out<float>(UpdateOut::kParam) + row.begin;
  const int32_t states = std::min<int32_t>(row.num_states, kMaxOptimizerStates);
  for (int32_t i = 0; i < states; ++i) u.states[i] = state_at(l, row, i) + row.begin;
  u.count = row.end - row.begin;
  u.weight_decay = row.weight_decay;
  u.scaled = p.spec.scaled ? 1 : 0;
  if (p.copy != DType::kUndefined) {
    u.copy_dtype = number(p.copy);
    u.copy = l.out<std::byte>(UpdateOut::kCopy) + at * dtype_size(p.copy);
  }
  u.state = run_state(l);
  u.numbers = l.in<const ofsdp_step_numbers>(UpdateIn::kNumbers);
  u.base_lr = p.spec.base_lr;
  return u;
}

bool goes_on(const UpdateRow& row, const UpdateRow& next) {
  return next.begin == row.end && next.weight_decay == row.weight_decay &&
         next.num_states == row.num_states && std::ranges::equal(next.states, row.states) &&
         std::ranges::equal(next.shifts, row.shifts);
}

// One launch for rows side by side that differ in their parameters alone.
std::vector<UpdateRow> joined(const std::vector<UpdateRow>& rows) {
  std::vector<UpdateRow> made;
  for (const UpdateRow& row : rows) {
    if (!made.empty() && goes_on(made.back(), row)) {
      made.back().end = row.end;
    } else {
      made.push_back(row);
    }
  }
  return made;
}

using Create = decltype(CudaImplementation::create);

Create advance(const char* name) {
  return [update = find_update(name)](DeviceState&, const Problem& problem) {
    PlannedRows planned(problem);
    planned.rows = joined(planned.rows);
    return make_cuda_kernel([update, planned](cudaStream_t stream, const Launch& l) {
      for (const UpdateRow& row : planned.rows) {
        OFSDP_CUDA_TRY(update(planned.spec.settings, update_of(planned, l, row), stream));
      }
      return cudaSuccess;
    });
  };
}

bool encodes(const Problem& p) {
  return std::any_of(p.outputs.begin() + UpdateOut::kStates, p.outputs.end(), [](const auto& desc) {
    return state_form(desc.dtype) != StateForm::kFloat32;
  });
}

// The states of a row, from its first element on.
EncodedStates encoded_states(const PlannedRows& planned, const std::vector<TensorDesc>& outputs,
                             const Launch& l, const UpdateRow& row) {
  EncodedStates states{{}, planned.spec.seed, row.parameter, row.first};
  for (int32_t i = 0; i < std::min<int32_t>(row.num_states, kMaxStates); ++i) {
    const size_t operand = UpdateOut::kStates + static_cast<size_t>(row.states[i]);
    const TensorDesc& desc = outputs[operand];
    states.states[i] = stored_state(state_form(desc.dtype), l.out<std::byte>(operand), desc.numel())
                           .from(row.begin + row.shifts[i]);
  }
  return states;
}

// `advance` on states in fewer bits: a launch per parameter.
Create advance_encoded(const char* name) {
  return [update = find_encoded_update(name)](DeviceState&, const Problem& problem) {
    const PlannedRows planned(problem);
    const std::vector<TensorDesc> outputs = problem.outputs;
    return make_cuda_kernel([=](cudaStream_t stream, const Launch& l) {
      for (const UpdateRow& row : planned.rows) {
        ofsdp_device_update u = update_of(planned, l, row);
        std::ranges::fill(u.states, nullptr);
        const EncodedStates states = encoded_states(planned, outputs, l, row);
        OFSDP_CUDA_TRY(update(planned.spec.settings, u, states, stream));
      }
      return cudaSuccess;
    });
  };
}

// The gradient, or with `looks_ahead` the direction that follows from it and the momentum.
Create keep(bool looks_ahead) {
  return [looks_ahead](DeviceState&, const Problem& problem) {
    const PlannedRows planned(problem);
    const bool reads = looks_ahead && planned.spec.settings.momentum != 0;
    const DeviceUpdate put = find_update(reads ? "muon_direction" : "assign");
    return make_cuda_kernel([put, reads, planned](cudaStream_t stream, const Launch& l) {
      for (const UpdateRow& row : planned.rows) {
        ofsdp_device_update u = update_of(planned, l, row);
        u.param = l.out<float>(UpdateOut::kKept) + row.begin;
        if (!reads) std::ranges::fill(u.states, nullptr);
        const bool stays =
            !reads && u.gradient.src == u.param && u.gradient.onto == nullptr && u.scaled == 0;
        if (!stays) OFSDP_CUDA_TRY(put(planned.spec.settings, u, stream));
      }
      return cudaSuccess;
    });
  };
}

// The same with a momentum in fewer bits. Encoding it again changes no bit.
std::unique_ptr<CudaKernel> keep_encoded(DeviceState& device, const Problem& problem) {
  const PlannedRows planned(problem);
  if (planned.spec.settings.momentum == 0) return keep(true)(device, problem);
  const std::vector<TensorDesc> outputs = problem.outputs;
  return make_cuda_kernel([put = find_encoded_update("muon_direction"), planned, outputs](
                              cudaStream_t stream, const Launch& l) {
    for (const UpdateRow& row : planned.rows) {
      ofsdp_device_update u = update_of(planned, l, row);
      u.param = l.out<float>(UpdateOut::kKept) + row.begin;
      std::ranges::fill(u.states, nullptr);
      const EncodedStates states = encoded_states(planned, outputs, l, row);
      OFSDP_CUDA_TRY(put(planned.spec.settings, u, states, stream));
    }
    return cudaSuccess;
  });
}

std::unique_ptr<CudaKernel> sums(DeviceState&, const Problem& problem) {
  return make_cuda_kernel([planned = PlannedRows(problem)](cudaStream_t stream, const Launch& l) {
    float* const sums = l.out<float>(UpdateOut::kSums);
    for (const UpdateRow& row : planned.rows) {
      OFSDP_CUDA_TRY(sum_matrix_squares({row.rows, row.columns, row.first, row.end - row.begin,
                                         l.in<const float>(UpdateIn::kGradient) + row.begin,
                                         sums + row.sums, sums + row.column_sums()},
                                        stream));
    }
    return cudaSuccess;
  });
}

std::unique_ptr<CudaKernel> factors(DeviceState&, const Problem& problem) {
  return make_cuda_kernel([planned = PlannedRows(problem)](cudaStream_t stream, const Launch& l) {
    const float* const sums = l.out<float>(UpdateOut::kSums);
    for (const UpdateRow& row : planned.rows) {
      const int64_t size = row.rows * row.columns, first = row.first / size;
      const int64_t matrices = (row.first + row.count() + size - 1) / size - first;
      float* const rows = state_at(l, row, 0) + first * row.rows;
      float* const columns = state_at(l, row, 1) + first * row.columns;
      OFSDP_CUDA_TRY(advance_factors({rows, sums + row.sums + first * row.rows, matrices * row.rows,
                                      row.columns, run_state(l)},
                                     stream));
      OFSDP_CUDA_TRY(advance_factors({columns, sums + row.column_sums() + first * row.columns,
                                      matrices * row.columns, row.rows, run_state(l)},
                                     stream));
      OFSDP_CUDA_TRY(mean_rows(rows, row.rows, matrices,
                               l.out<float>(UpdateOut::kMeans) + row.means + first, stream));
    }
    return cudaSuccess;
  });
}

using OfParts = cudaError_t (*)(const OptimizerSettings&, const ofsdp_parameter_parts&,
                                cudaStream_t);

// An operation on the parts of all rows at once.
Create over_parts(OfParts launch) {
  return [launch](DeviceState&, const Problem& problem) {
    const PlannedRows planned(problem);
    std::vector<ofsdp_parameter_part> parts;
    for (const UpdateRow& row : planned.rows) {
      ofsdp_parameter_part& part = parts.emplace_back();
      part.begin = row.begin;
      part.count = row.columns > 0 ? std::max<int64_t>(row.count(), 0) : row.end - row.begin;
      part.parameter = row.parameter;
      part.weight_decay = row.weight_decay;
      part.numel = row.numel;
      part.first = row.first;
      part.rows = row.rows;
      part.columns = row.columns;
      part.adjust = row.adjust;
    }
    return make_cuda_kernel([launch, planned, parts](cudaStream_t stream, const Launch& l) mutable {
      ofsdp_parameter_parts p{};
      for (size_t i = 0; i < parts.size(); ++i) {
        const UpdateRow& row = planned.rows[i];
        const int32_t states = std::min<int32_t>(row.num_states, 2);
        for (int32_t k = 0; k < states; ++k) {
          parts[i].states[k] = state_at(l, row, k);
          p.states[k] = state_at(l, row, k);
        }
        if (row.columns > 0) parts[i].means = l.out<float>(UpdateOut::kMeans) + row.means;
      }
      p.param = l.out<float>(UpdateOut::kParam);
      p.parts = parts.data();
      p.num_parts = static_cast<int64_t>(parts.size());
      p.squares = l.out<double>(UpdateOut::kSquares);
      p.partials = l.out<double>(UpdateOut::kPartials);
      p.state = run_state(l);
      p.numbers = l.in<const ofsdp_step_numbers>(UpdateIn::kNumbers);
      p.gradient = l.out<float>(UpdateOut::kKept);
      p.base_lr = planned.spec.base_lr;
      return launch(planned.spec.settings, p, stream);
    });
  };
}

using OfEncodedPart = cudaError_t (*)(const OptimizerSettings&, const ofsdp_parameter_parts&,
                                      const EncodedStates&, cudaStream_t);

// The same on states in fewer bits: a launch per parameter.
Create over_encoded_parts(OfEncodedPart launch) {
  return [launch](DeviceState&, const Problem& problem) {
    const PlannedRows planned(problem);
    const std::vector<TensorDesc> outputs = problem.outputs;
    return make_cuda_kernel([=](cudaStream_t stream, const Launch& l) {
      for (const UpdateRow& row : planned.rows) {
        ofsdp_parameter_part part{};
        part.count = row.end - row.begin;
        part.parameter = row.parameter;
        part.weight_decay = row.weight_decay;
        ofsdp_parameter_parts p{};
        p.param = l.out<float>(UpdateOut::kParam) + row.begin;
        p.parts = &part;
        p.num_parts = 1;
        p.squares = l.out<double>(UpdateOut::kSquares);
        p.partials = l.out<double>(UpdateOut::kPartials);
        p.state = run_state(l);
        p.numbers = l.in<const ofsdp_step_numbers>(UpdateIn::kNumbers);
        p.base_lr = planned.spec.base_lr;
        const EncodedStates states = encoded_states(planned, outputs, l, row);
        OFSDP_CUDA_TRY(launch(planned.spec.settings, p, states, stream));
      }
      return cudaSuccess;
    });
  };
}

std::unique_ptr<CudaKernel> round(DeviceState&, const Problem& problem) {
  return make_cuda_kernel([planned = PlannedRows(problem)](cudaStream_t stream, const Launch& l) {
    return convert(l.out<float>(UpdateOut::kParam), number(DType::kFloat32),
                   l.out(UpdateOut::kCopy), number(planned.copy), planned.numel, stream);
  });
}

std::unique_ptr<CudaKernel> average(DeviceState&, const Problem& problem) {
  PlannedRows planned(problem);
  planned.rows = joined(planned.rows);
  return make_cuda_kernel([planned](cudaStream_t stream, const Launch& l) {
    for (const UpdateRow& row : planned.rows) {
      OFSDP_CUDA_TRY(
          follow_average({l.out<float>(UpdateOut::kParam) + row.begin,
                          l.out<float>(UpdateOut::kAverage) + row.begin, row.end - row.begin,
                          planned.spec.first_update, planned.spec.average_decay, run_state(l)},
                         stream));
    }
    return cudaSuccess;
  });
}

std::unique_ptr<CudaKernel> swap(DeviceState&, const Problem& problem) {
  return make_cuda_kernel([n = PlannedRows(problem).numel](cudaStream_t stream, const Launch& l) {
    return swap_arrays(l.out<float>(UpdateOut::kParam), l.out<float>(UpdateOut::kAverage), n,
                       stream);
  });
}

std::unique_ptr<CudaKernel> normalize_array(DeviceState&, const Problem& p) {
  return make_cuda_kernel([n = p.out(0).numel()](cudaStream_t stream, const Launch& l) {
    return normalize(l.out<float>(0), n, updates::Muon::kEps, l.out<double>(1), stream);
  });
}

std::unique_ptr<CudaKernel> scale_array(DeviceState&, const Problem& p) {
  return make_cuda_kernel([n = p.out(0).numel()](cudaStream_t stream, const Launch& l) {
    return scale(l.out<float>(0), n, updates::Muon::kC, stream);
  });
}

std::unique_ptr<CudaKernel> put(DeviceState&, const Problem& p) {
  const auto n = p.out(0).numel();
  return make_cuda_kernel([n, reads = p.has_in(0)](cudaStream_t stream, const Launch& l) {
    auto* const to = l.out<float>(0);
    OFSDP_CUDA_TRY(cudaMemsetAsync(to, 0, static_cast<size_t>(n) * sizeof(float), stream));
    return reads ? add_onto(l.in(0), number(DType::kFloat32), to, n, stream) : cudaSuccess;
  });
}

// The unit may have more states, of rows with other optimizers.
bool few_states(const Problem& p) {
  return std::ranges::all_of(
      update_rows(p), [](const UpdateRow& row) { return row.num_states <= kMaxOptimizerStates; });
}

Acceptance takes_states(const Problem& p) {
  return accept_if(few_states(p) && !encodes(p),
                   "a state is not float32, or a parameter has more than four");
}

Acceptance takes_encoded_states(const Problem& p) {
  return accept_if(few_states(p) && encodes(p), "all states are float32");
}

// For operations that read no states.
Acceptance takes_any(const Problem&) { return Acceptance(true); }

}  // namespace

void add_updates(CudaImplementations& list) {
  const auto add = [&list](const char* optimizer, const char* part, Create create) {
    list.push_back({update_op(optimizer, part), "own", takes_states, std::move(create)});
  };
  const auto add_encoded = [&list](const char* optimizer, const char* part, Create create) {
    list.push_back(
        {update_op(optimizer, part), "few bits", takes_encoded_states, std::move(create)});
  };
  const auto add_advance = [&](const char* optimizer) {
    add(optimizer, "advance", advance(optimizer));
    if (find_encoded_update(optimizer) == nullptr) return;
    add_encoded(optimizer, "advance", advance_encoded(optimizer));
  };
#define OPTIMIZER(name, ...) add_advance(#name);
#include "kernels/optimizers/optimizers.inc"
  add("assign", "advance", advance("assign"));
  add("lamb", "norms", over_parts(add_lamb_squares));
  add("lamb", "step", over_parts(take_lamb_step));
  add_encoded("lamb", "norms", over_encoded_parts(add_lamb_squares_encoded));
  add_encoded("lamb", "step", over_encoded_parts(take_lamb_step_encoded));
  add("adafactor", "keep", keep(false));
  add("adafactor", "sums", sums);
  add("adafactor", "factors", factors);
  add("adafactor", "norms", over_parts(add_adafactor_squares));
  add("adafactor", "step", over_parts(take_adafactor_step));
  add("muon", "keep", keep(true));
  add_encoded("muon", "keep", keep_encoded);
  list.push_back({update_op("muon", "step"), "own", takes_any, over_parts(take_muon_step)});
  list.push_back({kAverageOp, "own", takes_any, average});
  list.push_back({kSwapOp, "own", takes_any, swap});
  list.push_back({kRoundOp, "own", takes_any, round});
  list.push_back({update_op("muon", "normalize"), "own", takes_any, normalize_array});
  list.push_back({update_op("muon", "scale"), "own", takes_any, scale_array});
  list.push_back({kPutOp, "own", takes_any, put});
}

}  // namespace ofsdp::kernels::cuda
