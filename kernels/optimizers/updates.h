// The formulas of all optimizers (element_update.h says what a formula is): the structs that the
// rows of optimizers.inc name.
#pragma once

#include "kernels/optimizers/adafactor.h"
#include "kernels/optimizers/adagrad.h"
#include "kernels/optimizers/adam.h"
#include "kernels/optimizers/lamb.h"
#include "kernels/optimizers/momentum.h"
#include "kernels/optimizers/muon.h"
