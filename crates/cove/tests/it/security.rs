//! The wall, tried from inside: one test per probe, each in sandboxes of its own, as the ordinary user and as root, with
//! and without a network; and the doors of a server, tried from outside, all in one. The probes are those of `cove redteam`.

use std::time::Duration;

use cove_testkit::server::TestDirectory;
use serde_json::Value;

/// A probe's name, so that the compiler finds one that is missing here or there.
macro_rules! probes {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            held(stringify!($name));
        })+

        #[test]
        fn every_probe_has_its_test() {
            let tested = [$(stringify!($name)),+];
            for probe in cove_probe::all() {
                assert!(tested.contains(&probe.name), "{} has no test", probe.name);
            }
            assert!(tested.len() >= 60);
        }
    };
}

fn held(name: &str) {
    let place = TestDirectory::new();
    let finished = place.cove(["redteam", "--json", name]).within(Duration::from_secs(120)).finish();
    let told: Value = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{name}: {error}\n{}\n{}", finished.stdout, finished.stderr));
    let finding = &told[0];
    assert_eq!(finding["name"], name);
    assert_ne!(finding["verdict"], "not held", "{}", finding["detail"]);
}

#[test]
fn nobody_gets_in_at_the_doors_of_a_server() {
    let place = TestDirectory::new();
    let finished = place.cove(["redteam", "--json", "doors"]).within(Duration::from_secs(240)).finish();
    let told: Vec<Value> = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", finished.stdout, finished.stderr));
    let lost: Vec<_> = told.iter().filter(|finding| finding["verdict"] == "not held").collect();
    assert!(lost.is_empty(), "{lost:#?}");
    let held = told.iter().filter(|finding| finding["verdict"] == "held").count();
    assert!(held + cove_probe::all().count() >= 150, "{held} held");
    let names: std::collections::HashSet<_> = told.iter().map(|finding| finding["name"].to_string()).collect();
    assert_eq!(names.len(), told.len(), "each probe has a name of its own");
    assert_eq!(finished.code, 0, "{}", finished.stderr);
}

#[test]
fn probes_are_listed_without_being_tried() {
    let place = TestDirectory::new();
    let listed = place.cove(["redteam", "--list", "--json"]).finish().expect_success().stdout;
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    for part in ["engine", "doors"] {
        assert!(listed.iter().any(|probe| probe["part"] == part && probe["verdict"].is_null()), "{part}");
    }
    let first = cove_probe::all().next().unwrap();
    let table = place.cove(["redteam", "--list"]).finish().expect_success().stdout;
    assert!(table.contains(first.name) && table.contains(first.meaning), "{table}");
    assert_eq!(table.lines().count(), listed.len() + 1);
    let wrong = place.cove(["redteam", "cannot_be_a_probe"]).finish().expect_code(2);
    assert!(wrong.stderr.contains("hint: `cove redteam --list`"), "{}", wrong.stderr);
}

probes! {
    cannot_read_the_hosts_shadow_file
    cannot_see_roots_home
    cannot_see_other_homes
    cannot_see_srv
    cannot_see_boot
    cannot_see_the_hosts_var
    cannot_read_canary_files
    cannot_reach_canaries_through_proc_root
    cannot_climb_above_the_root
    cannot_escape_by_chroot
    cannot_escape_by_symlink
    cannot_hard_link_out_of_the_sandbox
    cannot_escape_through_inherited_descriptors
    cannot_open_pid_ones_descriptors
    cannot_overwrite_the_guest_program
    cannot_overwrite_the_hosts_usr
    cannot_see_host_paths_in_mountinfo
    cannot_see_block_devices
    cannot_see_foreign_sockets
    cannot_use_bpf
    cannot_use_perf_events
    cannot_use_kernel_keys
    cannot_use_userfaultfd
    cannot_use_io_uring
    cannot_use_up_the_hosts_asynchronous_io
    cannot_use_up_the_hosts_process_numbers
    cannot_use_up_the_hosts_open_files
    cannot_use_up_the_kernels_memory_for_programs
    cannot_pair_sockets_of_other_families
    cannot_load_kernel_modules
    cannot_replace_the_kernel
    cannot_reboot
    cannot_manage_swap_or_accounting
    cannot_open_files_by_handle
    cannot_watch_the_filesystem_with_fanotify
    cannot_use_vmsplice_or_secret_memory
    cannot_steal_descriptors
    cannot_mount
    cannot_mount_with_the_new_interface
    cannot_enter_namespaces
    cannot_read_the_kernel_log
    cannot_set_the_clock
    cannot_hang_up_terminals
    cannot_move_pages_of_others
    cannot_touch_io_ports
    cannot_change_the_descriptor_table
    cannot_use_clone3
    cannot_use_the_32_bit_entry
    cannot_use_x32_numbers
    cannot_write_proc_sys
    cannot_set_the_core_pattern
    cannot_trigger_sysrq
    cannot_read_kernel_memory
    cannot_read_kernel_addresses
    cannot_read_host_tables_in_proc
    cannot_see_the_hosts_load
    cannot_see_the_hosts_paging
    cannot_see_the_hosts_pressure
    cannot_flush_the_hosts_disks
    cannot_write_sys
    cannot_write_cgroup_files
    cannot_set_a_release_agent
    cannot_make_block_devices
    cannot_make_character_devices
    cannot_open_dangerous_devices
    cannot_reach_debug_filesystems
    cannot_reach_the_hosts_abstract_sockets
    cannot_reach_the_hosts_loopback
    cannot_reach_the_hosts_addresses
    cannot_reach_metadata_services
    cannot_reach_private_networks
    cannot_open_packet_sockets
    cannot_open_crypto_sockets
    cannot_open_vm_sockets
    cannot_open_rare_socket_families
    cannot_open_rare_protocols
    cannot_speak_netfilter
    cannot_send_datagrams_around_the_proxy
    cannot_see_host_processes
    cannot_signal_host_processes
    cannot_kill_pid_one
    cannot_trace_pid_one
    cannot_read_pid_ones_memory
    cannot_make_user_namespaces
    cannot_make_mount_namespaces
    cannot_make_network_namespaces
    cannot_make_pid_or_cgroup_namespaces
    cannot_hold_more_capabilities_than_docker_gives
    cannot_map_more_users
    cannot_be_the_hosts_root
    cannot_run_without_a_filter
    cannot_rename_the_host
    cannot_take_real_time_priority
    cannot_raise_its_priority
    cannot_shield_itself_from_the_oom_killer
    cannot_type_into_terminals
    cannot_take_the_terminals_of_all
    cannot_see_its_cgroup_path
}
