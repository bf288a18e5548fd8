// Limits of cgroups, read from folders that look like /proc and /sys on machines with v1, v2, both,
// and containers; and the number of threads that follows.
#include <gtest/gtest.h>
#include <sched.h>

#include "fsdp/comm/rank_identity.h"
#include "kernels/base/process.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace cgroup_test {

class Machine : public onnx_bytes::Folder {
 public:
  Machine() { meminfo(1000, 0); }
  void meminfo(int64_t kilobytes, int64_t swap) const {
    write("proc/meminfo",
          format_text("MemTotal:  {} kB\nMemFree:  1 kB\nSwapTotal:  {} kB\n", kilobytes, swap));
  }
  // v2, with this process in `group`; the mount shows the group `seen`.
  void unified(const std::string& group, const std::string& seen = "/") const {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "31 23 0:28 / /sys rw - sysfs sysfs rw\n42 31 0:39 " + seen +
                                     " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }
  void v1(const std::string& group, const std::string& seen = "/") const {
    write("proc/self/cgroup",
          "9:name=systemd:/\n4:memory:" + group + "\n3:cpu,cpuacct:" + group + "\n0::/\n");
    write("proc/self/mountinfo",
          "32 31 0:29 " + seen +
              " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup "
              "rw,cpu,cpuacct\n35 31 0:32 " +
              seen + " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
              "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  }
  void set(const std::string& name, const std::string& text) const {
    write("sys/fs/cgroup/" + name, text + "\n");
  }
  Cgroup cgroup() const { return Cgroup(path()); }
};

TEST(Cgroup, AMachineWithoutOne) {
  const Machine machine;
  EXPECT_EQ(machine.cgroup().memory_limit(), std::nullopt);
  EXPECT_EQ(machine.cgroup().cores(), std::nullopt);
  EXPECT_EQ(machine.cgroup().oom_kills(), 0);
  EXPECT_EQ(machine_memory(machine.path()).bytes, 1024000);
  EXPECT_FALSE(machine_memory(machine.path()).cgroup);
  EXPECT_EQ(machine_memory(machine / "nothing").bytes, INT64_MAX);
}

TEST(Cgroup, TheLeastOfAGroupAndItsParentsCounts) {
  const Machine machine;
  machine.unified("/slurm/job7");
  machine.set("memory.max", "max");
  machine.set("slurm/memory.max", "500000");
  machine.set("slurm/cpu.max", "150000 100000");
  machine.set("slurm/job7/memory.max", "max");
  machine.set("slurm/job7/cpu.max", "max 100000");
  EXPECT_EQ(machine.cgroup().memory_limit(), 500000);
  EXPECT_EQ(machine.cgroup().cores(), 1.5);
  machine.set("slurm/job7/memory.high", "400000");
  machine.set("slurm/job7/cpu.max", "50000 100000");
  EXPECT_EQ(machine.cgroup().memory_limit(), 400000);
  EXPECT_EQ(machine.cgroup().cores(), 0.5);
  EXPECT_EQ(machine_memory(machine.path()).bytes, 400000);
  EXPECT_TRUE(machine_memory(machine.path()).cgroup);
}

TEST(Cgroup, SwapCounts) {
  const Machine machine;
  machine.meminfo(1000, 100);
  machine.unified("/a");
  machine.set("a/memory.max", "500000");
  EXPECT_EQ(machine.cgroup().memory_limit(), 500000 + 102400);
  machine.set("a/memory.swap.max", "7");
  EXPECT_EQ(machine.cgroup().memory_limit(), 500007);
  machine.v1("/a");
  machine.set("memory/a/memory.limit_in_bytes", "500000");
  EXPECT_EQ(machine.cgroup().memory_limit(), 500000 + 102400);
  machine.set("memory/a/memory.memsw.limit_in_bytes", "500000");
  EXPECT_EQ(machine.cgroup().memory_limit(), 500000);
}

TEST(Cgroup, V1) {
  const Machine machine;
  machine.v1("/docker/c1");
  machine.set("memory/memory.limit_in_bytes", "9223372036854771712");
  machine.set("memory/docker/c1/memory.limit_in_bytes", "300000");
  machine.set("memory/docker/c1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3");
  machine.set("cpu,cpuacct/docker/cpu.cfs_quota_us", "250000");
  machine.set("cpu,cpuacct/docker/cpu.cfs_period_us", "100000");
  machine.set("cpu,cpuacct/docker/c1/cpu.cfs_quota_us", "-1");
  machine.set("cpu,cpuacct/docker/c1/cpu.cfs_period_us", "100000");
  EXPECT_EQ(machine.cgroup().memory_limit(), 300000);
  EXPECT_EQ(machine.cgroup().cores(), 2.5);
  EXPECT_EQ(machine.cgroup().oom_kills(), 3);
}

// The container's own group is the mount, whatever the host calls it.
TEST(Cgroup, AContainerSeesItsGroupAsTheMount) {
  const Machine machine;
  machine.set("memory/memory.limit_in_bytes", "300000");
  machine.set("memory.max", "200000");
  machine.set("memory.events", "low 0\noom 4\noom_kill 2");
  machine.v1("/docker/c1", "/docker/c1");
  EXPECT_EQ(machine.cgroup().memory_limit(), 300000);
  for (const char* group : {"/", "/../../other"}) {
    machine.unified(group);
    EXPECT_EQ(machine.cgroup().memory_limit(), 200000) << group;
    EXPECT_EQ(machine.cgroup().oom_kills(), 2) << group;
  }
}

TEST(Cgroup, WhatIsNoNumberIsNoLimit) {
  const Machine machine;
  machine.unified("/a");
  for (const char* text : {"", "max", "-1", "many", "99999999999999999999"}) {
    machine.set("a/memory.max", text);
    machine.set("a/cpu.max", text);
    EXPECT_EQ(machine.cgroup().memory_limit(), std::nullopt) << text;
    EXPECT_EQ(machine.cgroup().cores(), std::nullopt) << text;
  }
}

TEST(Cgroup, TheQuotaIsTheMostThreads) {
  const Machine machine;
  machine.unified("/");
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  const int cores = CPU_COUNT(&mine);
  EXPECT_EQ(cores_per_rank(1, machine.cgroup()), cores);
  machine.set("cpu.max", "50000 100000");
  EXPECT_EQ(cores_per_rank(1, machine.cgroup()), 1);
  machine.set("cpu.max", "110000 100000");
  EXPECT_EQ(cores_per_rank(1, machine.cgroup()), std::min(cores, 2));
  EXPECT_EQ(cores_per_rank(2, machine.cgroup()), 1);
  machine.set("cpu.max", "100000000 100000");
  EXPECT_EQ(cores_per_rank(1, machine.cgroup()), cores);
}

}  // namespace cgroup_test
}  // namespace ofsdp
