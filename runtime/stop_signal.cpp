#include "runtime/stop_signal.h"

namespace ofsdp {
namespace {

volatile std::sig_atomic_t signalled = 0;

void note(int) { signalled = 1; }

}  // namespace

StopSignal::StopSignal() {
  signalled = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigaction(SIGTERM, &action, &before_term_);
  sigaction(SIGINT, &action, &before_interrupt_);
}

StopSignal::~StopSignal() {
  sigaction(SIGTERM, &before_term_, nullptr);
  sigaction(SIGINT, &before_interrupt_, nullptr);
}

bool StopSignal::heard() const { return signalled != 0; }

}  // namespace ofsdp
