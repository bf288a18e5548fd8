#include "kernels/cpu/parallel.h"

#include <omp.h>

namespace ofsdp::kernels {

int pool_threads() { return omp_get_max_threads(); }

void set_pool_threads(int count) { omp_set_num_threads(count); }

}  // namespace ofsdp::kernels
