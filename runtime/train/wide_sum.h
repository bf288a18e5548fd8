// WideSum: a sum in two doubles, about 106 bits, by error-free transformations (Dekker 1971; Knuth,
// The Art of Computer Programming 2, 4.2.2).
//
// Ownership: a value. Threads: any. Errors: none; infinity and NaN stay what they are in `high`.
#pragma once

#include <cmath>

namespace ofsdp::runtime {

struct WideSum {
  double high = 0, low = 0;

  void add(double value) {
    const double sum = high + value;
    const double part = sum - high;
    low += (high - (sum - part)) + (value - part);
    settle(sum);
  }
  void add(const WideSum& other) {
    add(other.high);
    add(other.low);
  }
  double value() const { return high + low; }

 private:
  void settle(double sum) {
    high = sum + low;
    low = low - (high - sum);
    if (high - high != 0) low = 0;  // infinite or NaN
  }
};

// The sum of squared distances from the mean, of the sum of `count` squares and the sum.
inline double centered(const WideSum& squares, const WideSum& sum, double count) {
  const double product = sum.high * sum.high;
  const double rest = std::fma(sum.high, sum.high, -product) + 2 * sum.high * sum.low;
  const double quotient = product / count;
  WideSum result = squares;
  result.add(-quotient);
  result.add(-(std::fma(-quotient, count, product) + rest) / count);
  return result.value();
}

}  // namespace ofsdp::runtime
