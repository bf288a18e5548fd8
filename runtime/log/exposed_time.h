// ExposedTime measures how long this rank stood still for communication in an update, by unit:
// waits for other ranks, gathers, and reductions that are not one pass with the update.
//
// The engine calls begin_update, then `add` any number of times, then end_update; time added
// outside an update (evaluation) is dropped. Medians are over updates, in constant memory
// (StepTimes). Unit -1 is for exchanges that belong to no unit: for the gradient norm, and
// after an update.
//
// Times are steady clock nanoseconds, medians milliseconds. Must be used by the executor's thread.
// Allocates only in the constructor. exposed_text is collective; errors are from
// Communicator::exchange.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/plan/plan.h"
#include "runtime/log/log_parts.h"

namespace ofsdp::runtime {

inline int64_t nanoseconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

class ExposedTime {
 public:
  explicit ExposedTime(size_t units = 0);

  void begin_update();
  void add(int unit, int64_t nanoseconds) {
    present_[static_cast<size_t>(unit + 1)] += nanoseconds;
  }
  void end_update();

  int64_t updates() const { return total_.count(); }
  double median_ms(int unit) const { return medians_[static_cast<size_t>(unit + 1)].median(); }
  double median_total_ms() const { return total_.median(); }

  // Adds the time between construction and destruction.
  class Stretch {
   public:
    Stretch(ExposedTime& time, int unit) : time_(time), unit_(unit), began_(nanoseconds_now()) {}
    ~Stretch() { time_.add(unit_, nanoseconds_now() - began_); }
    Stretch(const Stretch&) = delete;
    Stretch& operator=(const Stretch&) = delete;

   private:
    ExposedTime& time_;
    int unit_;
    int64_t began_;
  };

 private:
  std::vector<int64_t> present_;  // one per unit, the first for unit -1
  std::vector<StepTimes> medians_;
  StepTimes total_;
};

// On rank 0 returns the total on the rank that waited longest, and with `units` the most expensive
// units, each with the slowest rank's time; empty with one rank:
//
// waiting for communication: 5.32 ms per step (median, slowest rank)
//
// waited 3.10 ms for unit 7 (encoder.layer.6)
Result<std::string> exposed_text(const ExposedTime& time, const Plan& plan,
                                 Communicator& communicator, bool units);

}  // namespace ofsdp::runtime
