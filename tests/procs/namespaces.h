// Two hosts on one machine: network namespaces joined by a link with a delay and a limited rate
// (tests/hosts/delayed_link.cpp). If /dev/net/tun cannot be opened, a pair of virtual links joins
// them, with only a limited rate. They share files and processes with this machine, but no network
// and no abstract sockets. Ranks need no more from a host.
//
// Needs root, `ip`, and a kernel that allows it; `made` tells whether, and `link` names the link.
// Ownership: made and removed with the object, together with every process left on these hosts.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/namespaces.h"
#include "tests/support/run_program.h"

namespace ofsdp {

class Namespaces {
 public:
  static constexpr const char* kAddress[2] = {"10.77.31.1", "10.77.31.2"};

  static constexpr int kDelay = 1000;    // microseconds, one way
  static constexpr int kMegabits = 400;  // a second

  Namespaces() {
    for (int h : {0, 1}) made_ = run("ip netns add {}", name(h)) && (h == 0 || made_);
    delayed_ = made_ && start_link() && address_devices();
    if (!delayed_) link_.reset();
    made_ = made_ && (delayed_ || make_veth());
    std::printf("two hosts: %s\n", made_ ? link().c_str() : kNotMade);
    std::fflush(stdout);
  }
  ~Namespaces() {
    link_.reset();
    for (int h : {0, 1}) {
      run("ip netns pids {} | xargs -r kill -9", name(h));
      run("ip netns del {}", name(h));
    }
    unlink(agent_.c_str());
  }
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  bool made() const { return made_; }
  static constexpr const char* kNotMade = "network namespaces cannot be made here (ip netns, veth)";
  std::string link() const {
    if (!delayed_) return "virtual links with a limited rate and no delay: no /dev/net/tun here";
    return format_text("a link of {} us and {} Mbit/s", kDelay, kMegabits);
  }
  // Prefix for a command that runs on that host.
  std::string on(int host) const { return format_text("ip netns exec {} ", name(host)); }
  std::vector<std::string> words_on(int host) const { return {"ip", "netns", "exec", name(host)}; }
  // As if a cable were pulled: the devices and their addresses stay.
  void cut() {
    link_.reset();
    if (!delayed_) run("ip -n {} link set {} down", name(0), device(0));
  }
  void join() {
    const bool joined =
        delayed_ ? start_link() : run("ip -n {} link set {} up", name(0), device(0));
    if (!joined) ADD_FAILURE() << "the hosts cannot be joined again";
  }

  // mpirun calls this in place of ssh: AGENT [-x] ADDRESS COMMAND...
  std::string agent() {
    agent_ = format_text("/tmp/ofsdp-agent-{}", getpid());
    std::ofstream(agent_) << "#!/bin/sh\n[ \"$1\" = -x ] && shift\nhost=$1; shift\ncase $host in\n"
                          << kAddress[0] << ") ns=" << name(0) << ";;\n*) ns=" << name(1)
                          << ";;\nesac\nexec ip netns exec $ns sh -c \"$*\"\n";
    return std::system(format_text("chmod +x {}", agent_).c_str()) == 0 ? agent_ : "";
  }

 private:
  static std::string name(int host) { return format_text("ofsdp-{}-{}", getpid(), host); }
  static std::string device(int host) { return format_text("of{}x{}", getpid() % 1000000, host); }

  template <typename... Args>
  static bool run(FormatOf<Args...> format, const Args&... args) {
    const std::string line = format_text<Args...>(format, args...);
    return std::system(("(" + line + ") >/dev/null 2>&1").c_str()) == 0;
  }

  bool start_link() {
    link_ = std::make_unique<Program>(
        std::vector{std::string(OFSDP_DELAYED_LINK), name(0), device(0), name(1), device(1),
                    std::to_string(kDelay), std::to_string(kMegabits)});
    return link_->until_output("ready", 10);
  }

  bool make_veth() const {
    bool fine = run("ip link add {} netns {} type veth peer name {} netns {}", device(0), name(0),
                    device(1), name(1)) &&
                address_devices();
    for (int h : {0, 1}) {
      fine = fine && run("tc -n {} qdisc add dev {} root tbf rate {}mbit burst 256kb latency 50ms",
                         name(h), device(h), kMegabits);
    }
    return fine;
  }

  bool address_devices() const {
    bool fine = true;
    for (int h : {0, 1}) {
      fine = fine && run("ip -n {} addr add {}/24 dev {}", name(h), kAddress[h], device(h)) &&
             run("ip -n {} link set lo up", name(h)) &&
             run("ip -n {} link set {} mtu 9000 up", name(h), device(h));
    }
    return fine;
  }

  bool made_ = false, delayed_ = false;
  std::unique_ptr<Program> link_;  // while they are joined
  std::string agent_;
};

}  // namespace ofsdp
