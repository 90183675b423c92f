package main

import (
	"slices"
	"testing"
)

func TestRememberedOwners(t *testing.T) {
	first, again, err := rememberedOwners(nodeNames(2*ownersChanges), []string{"a", "b", "c"})
	if err != nil || first <= 0 || again <= 0 {
		t.Errorf("%s, %s, %v", first, again, err)
	}
}

func TestAfterChange(t *testing.T) {
	members := nodeNames(ownersMembers)
	gone := map[string]bool{}
	for change := range ownersChanges {
		present := afterChange(members, change)
		if change%2 == 1 {
			if !slices.Equal(present, members) {
				t.Fatalf("change %d: %d members are present, want all", change, len(present))
			}
			continue
		}
		if len(present) != len(members)-1 {
			t.Fatalf("change %d: %d members are present, want all but one", change, len(present))
		}
		for i, name := range members {
			if i == len(present) || present[i] != name {
				gone[name] = true
				break
			}
		}
	}
	if want := ownersChanges / 2; len(gone) != want {
		t.Errorf("%d members went, want %d", len(gone), want)
	}
}
