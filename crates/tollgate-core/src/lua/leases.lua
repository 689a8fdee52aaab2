-- Twin of leases.rs: what other scripts must know of units out on lease.
--
-- The leases of a bucket follow its counters in the same string, three numbers each: id, units, the
-- moment it ends. What is out counts as used in the debt, so that a script decides on a state with
-- leases as on any other once it is brought to now.
local LEASE_MICROS = 1000000
local leases_of
if ASKED[2] then
  -- What can be done to the leases of buckets; made when a bucket has some.
  function leases_of(bucket)
    -- Ticks of a bucket that are out on lease.
    local function outstanding(limit, leases)
      local sum = 0
      for i = 2, #leases, 3 do
        sum = min(sum + bucket.with_used(limit, leases[i], 0)[1], EXACT_MAX)
      end
      return sum
    end

    local function first_ended(leases, now)
      local first
      for i = 1, #leases, 3 do
        local ends_at = leases[i + 2]
        if ends_at <= now and not (first and leases[first + 2] <= ends_at) then first = i end
      end
      return first
    end

    local function remove(leases, at)
      for _ = 1, 3 do table.remove(leases, at) end
    end

    -- Twin of Leasable::settle. The list is changed in place, the state is returned.
    local function settled(limit, state, leases, now)
      local owed = max(state[1] - outstanding(limit, leases), 0)
      state = bucket.anchored(limit, { owed, state[2] }, now)
      -- A clock that stepped back makes no lease longer than leases are.
      local latest = plus(now, LEASE_MICROS)
      for i = 3, #leases, 3 do leases[i] = min(leases[i], latest) end
      local first = first_ended(leases, now)
      while first do
        local at = max(leases[first + 2], state[2])
        local _, after = bucket.force(limit, state, at, leases[first + 1])
        state = after
        remove(leases, first)
        first = first_ended(leases, now)
      end
      local owing = bucket.force(limit, state, now, 0)
      local debt = min(owing[DEBT_BEFORE] + outstanding(limit, leases), EXACT_MAX)
      if debt == 0 then return { 0, 0, 0 } end
      return { debt, owing[CHARGED_AT] }
    end

    return outstanding, settled, remove
  end
end
